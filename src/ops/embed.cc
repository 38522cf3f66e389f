// SPDX-License-Identifier: Apache-2.0
// embed: token ids to the residual stream, times a multiplier (granitemoe).
#include "ops/decoder_ops.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

class PlannedEmbed final : public PlannedOp {
 public:
  PlannedEmbed(PlanContext& context, const OpNode& node)
      : kernel_(context.kernel),
        products_(context.products),
        out_(context.scratch.value(node.outputs[0])),
        table_(context.weights.matrix(node.as<EmbedParameters>().table, context.graph.vocab_size,
                                      out_.width)),
        multiplier_(static_cast<float>(node.as<EmbedParameters>().multiplier)) {
    add_phase("rows", &PlannedEmbed::pieces, &PlannedEmbed::run);
  }

  int64_t pieces(const StepState& step) const { return divide_up(step.tokens, kTokensPerPiece); }
  void run(const StepState& step, int64_t piece) const {
    const int64_t end = std::min<int64_t>(step.tokens, (piece + 1) * kTokensPerPiece);
    for (int64_t token = piece * kTokensPerPiece; token < end; ++token) {
      products_.embed_row(table_, step.token_ids[token], multiplier_, out_.row(token));
      out_.quantize(kernel_, token);
    }
  }
  std::string kernel_name() const override { return std::string("cpu.") + kernel_.isa + ".embed"; }
  uint64_t weight_bytes() const override { return ops::weight_bytes(table_) / table_.rows; }

 private:
  static constexpr int64_t kTokensPerPiece = 32;

  const kernels::CpuKernels& kernel_;
  const Products& products_;
  RowBuffer& out_;
  const kernels::Weight& table_;
  float multiplier_;
};

std::unique_ptr<PlannedOp> plan_embed(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedEmbed>(context, node);
}

VITRINE_REGISTER_OP((OpDefinition{"embed", plan_embed}));

}  // namespace
}  // namespace vitrine::ops
