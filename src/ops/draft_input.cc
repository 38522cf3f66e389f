// SPDX-License-Identifier: Apache-2.0
// draft_input: the two halves that a multi-token prediction layer begins with (DeepSeek-V3, 2024).
#include "ops/draft_input.h"

#include <algorithm>

#include "ops/op.h"

namespace vitrine::ops {
namespace {

class PlannedDraftInput final : public PlannedOp {
 public:
  PlannedDraftInput(PlanContext& context, const OpNode& node, const DraftInputParameters& own)
      : kernel_(context.kernel),
        products_(context.products),
        given_(context.scratch.value(node.inputs[0])),
        out_(context.scratch.value(node.outputs[0])),
        table_(context.weights.matrix(own.table, context.graph.vocab_size, given_.width)),
        token_norm_(context.weights.vector(own.token_norm, given_.width)),
        stream_norm_(context.weights.vector(own.stream_norm, given_.width)),
        eps_(static_cast<float>(own.eps)) {
    add_phase("join", &PlannedDraftInput::pieces, &PlannedDraftInput::run);
  }

  int64_t pieces(const StepState& step) const { return divide_up(step.tokens, kTokensPerPiece); }
  void run(const StepState& step, int64_t piece) const {
    const int64_t width = given_.width;
    const int64_t end = std::min<int64_t>(step.tokens, (piece + 1) * kTokensPerPiece);
    for (int64_t token = piece * kTokensPerPiece; token < end; ++token) {
      float* const first = out_.row(token);
      products_.embed_row(table_, step.token_ids[token], 1.0F, first);
      kernel_.rms_norm(first, token_norm_, eps_, width, first);
      kernel_.rms_norm(given_.row(token), stream_norm_, eps_, width, first + width);
      out_.quantize(kernel_, token);
    }
  }
  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + ".draft_input";
  }
  uint64_t weight_bytes() const override {
    return ops::weight_bytes(table_) / static_cast<uint64_t>(table_.rows) +
           2 * static_cast<uint64_t>(given_.width) * sizeof(float);
  }

 private:
  static constexpr int64_t kTokensPerPiece = 8;

  const kernels::CpuKernels& kernel_;
  const Products& products_;
  const RowBuffer& given_;
  RowBuffer& out_;
  const kernels::Weight& table_;
  const float* token_norm_;
  const float* stream_norm_;
  float eps_;
};

std::unique_ptr<PlannedOp> plan_draft_input(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedDraftInput>(context, node, node.as<DraftInputParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{kDraftInput, plan_draft_input}));

}  // namespace
}  // namespace vitrine::ops
