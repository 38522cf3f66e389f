// SPDX-License-Identifier: Apache-2.0
// dense_ffn: a SwiGLU block on every token; a dense layer's (added to the residual stream) or a
// shared expert (its output is a value that `combine` adds). Where adapters change its gate or up,
// the two products stand by themselves before the activation; the bits are those of the fused one.
#include <array>

#include "ops/decoder_ops.h"
#include "ops/feed_forward.h"
#include "ops/formed_input.h"
#include "ops/low_rank.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

using Product = LowRankProducts::Product;

class PlannedDenseFfn final : public PlannedOp {
 public:
  PlannedDenseFfn(PlanContext& context, const OpNode& node, const DenseParameters& own)
      : kernel_(context.kernel),
        products_(context.products),
        in_(context.scratch.value(node.inputs[0])),
        out_(context.scratch.value(node.outputs[0])),
        hidden_(context.scratch.shared_rows("dense_hidden", context.shape.max_tokens,
                                            own.intermediate)),
        formed_in_(kernel_, in_, "dense"),
        formed_hidden_(kernel_, hidden_, "dense_hidden"),
        gate_(context, node, "gate", own.gate),
        up_(context, node, "up", own.up),
        low_rank_inner_(context, in_, std::array{gate_.product, up_.product}, 1.0),
        low_rank_outer_(context, hidden_, std::array{Product{&out_, own.down}}, own.multiplier),
        multiplier_(static_cast<float>(own.multiplier)),
        residual_(own.adds_to_residual) {
    const int64_t intermediate = own.intermediate;
    FormedMatrix down = context.weights.formed_matrix(own.down, out_.width, intermediate);
    const int32_t* const folded = foldable_order(context, down, own.gate, own.up);
    if (folded != nullptr) down.form.order = nullptr;
    weights_.gate = formed_in_.need(
        context.scratch, context.weights.formed_matrix(own.gate, intermediate, in_.width, folded));
    weights_.up = formed_in_.need(
        context.scratch, context.weights.formed_matrix(own.up, intermediate, in_.width, folded));
    weights_.down = formed_hidden_.need(context.scratch, down);
    require_pair(*weights_.gate, own.gate, *weights_.up, own.up);
    parts_.gating = own.gating;
    if (own.gating.kind != kernels::Gating::Kind::kSilu) {
      parts_.gate =
          &context.scratch.shared_rows("dense_gate", context.shape.max_tokens, own.intermediate);
      parts_.up =
          &context.scratch.shared_rows("dense_up", context.shape.max_tokens, own.intermediate);
    }
    hidden_rows_ = hidden_rows_per_piece(hidden_, context.shape.threads);
    out_rows_ = rows_per_piece(out_.width, context.shape.threads, kernels::kTileRows);
    add_phase(formed_in_.phase());
    add_phase(low_rank_inner_.first_half(
        make_phase(this, "hidden", &PlannedDenseFfn::inner_pieces, &PlannedDenseFfn::run_inner)));
    add_phase(low_rank_inner_.second_half());
    add_phase("activate", &PlannedDenseFfn::rows_to_activate, &PlannedDenseFfn::activate);
    add_phase(formed_hidden_.phase());
    add_phase(low_rank_outer_.first_half(
        make_phase(this, "down", &PlannedDenseFfn::outer_pieces, &PlannedDenseFfn::run_outer)));
    add_phase(low_rank_outer_.second_half());
  }

  /// The hidden layer; where adapters change it, gate and up by themselves.
  int64_t inner_pieces(const StepState& step) const {
    return divide_up(hidden_.width, hidden_rows_) * (is_split(step) ? 2 : 1);
  }
  void run_inner(const StepState& step, int64_t piece) const {
    kernels::RowMap rows;
    rows.count = step.tokens;
    if (!is_split(step)) {
      run_hidden(kernel_, products_, weights_, formed_in_.activations(*weights_.gate), hidden_,
                 rows, piece * hidden_rows_, std::min(hidden_.width, (piece + 1) * hidden_rows_),
                 parts_);
      return;
    }
    const int64_t blocks = divide_up(hidden_.width, hidden_rows_);
    const kernels::Weight& weight = piece < blocks ? *weights_.gate : *weights_.up;
    const Half& half = piece < blocks ? gate_ : up_;
    const int64_t begin = piece % blocks * hidden_rows_;
    products_.linear(weight, begin, std::min(hidden_.width, begin + hidden_rows_),
                     formed_in_.activations(weight), rows, nullptr, nullptr, half.product.out->data,
                     hidden_.width);
  }
  int64_t rows_to_activate(const StepState& step) const { return is_split(step) ? step.tokens : 0; }
  void activate(const StepState&, int64_t row) const {
    if (parts_.gate == nullptr) {
      return activate_row(kernel_, *gate_.product.out, *up_.product.out, hidden_, row);
    }
    ops::activate(kernel_, parts_, hidden_, row, 0, hidden_.width);
    hidden_.quantize(kernel_, row);
  }
  int64_t outer_pieces(const StepState&) const { return divide_up(out_.width, out_rows_); }
  void run_outer(const StepState& step, int64_t piece) const {
    kernels::RowMap rows;
    rows.count = step.tokens;
    products_.linear(*weights_.down, piece * out_rows_,
                     std::min(out_.width, (piece + 1) * out_rows_),
                     formed_hidden_.activations(*weights_.down), rows, nullptr,
                     residual_ ? &multiplier_ : nullptr, out_.data, out_.width);
  }
  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + ".gate_up_" + weight_kernel_name(*weights_.gate) +
           "+" + weight_kernel_name(*weights_.down) + form_name(formed_in_, formed_hidden_) +
           (residual_ ? "+residual" : "") +
           (low_rank_inner_.empty() && low_rank_outer_.empty() ? "" : "+low_rank");
  }
  uint64_t weight_bytes() const override {
    return weights_.bytes() + low_rank_inner_.weight_bytes() + low_rank_outer_.weight_bytes();
  }

 private:
  /// Gate or up before the activation; room only where there are adapters.
  struct Half {
    Half(PlanContext& context, const OpNode& node, const char* role, const std::string& module)
        : product{nullptr, module} {
      if (context.adapters == nullptr) return;
      product.out =
          &context.scratch.shared_rows(std::string("dense_") + role, context.shape.max_tokens,
                                       node.as<DenseParameters>().intermediate);
    }
    Product product;
  };

  bool is_split(const StepState& step) const {
    return step.num_adapters > 0 && !low_rank_inner_.empty();
  }

  const kernels::CpuKernels& kernel_;
  const Products& products_;
  RowBuffer& in_;
  RowBuffer& out_;
  RowBuffer& hidden_;
  FormedInput formed_in_, formed_hidden_;
  FeedForwardWeights weights_;
  Half gate_, up_;
  GateAndUp parts_;
  LowRankProducts low_rank_inner_, low_rank_outer_;
  float multiplier_;
  bool residual_;
  int64_t hidden_rows_ = 0, out_rows_ = 0;
};

std::unique_ptr<PlannedOp> plan_dense_ffn(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedDenseFfn>(context, node, node.as<DenseParameters>());
}

VITRINE_REGISTER_OP((OpDefinition{"dense_ffn", plan_dense_ffn}));

}  // namespace
}  // namespace vitrine::ops
