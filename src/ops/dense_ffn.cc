// SPDX-License-Identifier: Apache-2.0
// dense_ffn: a SwiGLU block on every token; a dense layer's (added to the residual stream) or a
// shared expert (its output is a value that `combine` adds). Where adapters change its gate or up,
// the two products stand by themselves before the activation; the bits are those of the fused one.
#include <array>

#include "ops/feed_forward.h"
#include "ops/low_rank.h"
#include "ops/op.h"

namespace vitrine::ops {
namespace {

using Product = LowRankProducts::Product;

class PlannedDenseFfn final : public PlannedOp {
 public:
  PlannedDenseFfn(PlanContext& context, const OpNode& node)
      : kernel_(context.kernel),
        products_(context.products),
        in_(context.value(node.inputs[0])),
        out_(context.value(node.outputs[0])),
        hidden_(
            context.shared_rows("dense_hidden", context.max_tokens, node.integer("intermediate"))),
        gate_(context, node, "gate"),
        up_(context, node, "up"),
        low_rank_inner_(context, in_, std::array{gate_.product, up_.product}, 1.0),
        low_rank_outer_(context, hidden_, std::array{Product{&out_, node.weight("down")}},
                        node.attribute("multiplier", 1.0)),
        multiplier_(static_cast<float>(node.attribute("multiplier", 1.0))),
        residual_(node.flag("residual")) {
    const int64_t intermediate = node.integer("intermediate");
    weights_.gate = &context.weights.matrix(node.weight("gate"), intermediate, in_.width);
    weights_.up = &context.weights.matrix(node.weight("up"), intermediate, in_.width);
    weights_.down = &context.weights.matrix(node.weight("down"), out_.width, intermediate);
    require_pair(*weights_.gate, node.weight("gate"), *weights_.up, node.weight("up"));
    context.need(in_, *weights_.gate);
    context.need(in_, *weights_.up);
    context.need(hidden_, *weights_.down);
    hidden_rows_ = hidden_rows_per_piece(hidden_, context.threads);
    out_rows_ = rows_per_piece(out_.width, context.threads, kernels::kTileRows);
  }

  // 0: the hidden layer, or where adapters change it gate and up, and the first half of what they
  // add to these. 1: the second half. 2: then the activation. 3: down, and the first half of what
  // they add to it. 4: the second half.
  int phases() const override { return 5; }
  int64_t pieces(const StepState& step, int phase) const override {
    switch (phase) {
      case 0: return inner_pieces(step) + low_rank_inner_.pieces(step, 0);
      case 1: return low_rank_inner_.pieces(step, 1);
      case 2: return is_split(step) ? step.tokens : 0;
      case 3: return outer_pieces() + low_rank_outer_.pieces(step, 0);
      default: return low_rank_outer_.pieces(step, 1);
    }
  }
  void run(const StepState& step, int phase, int64_t piece) override {
    if (phase == 1) return low_rank_inner_.run(step, 1, piece);
    if (phase == 2) {
      return activate_row(kernel_, *gate_.product.out, *up_.product.out, hidden_, piece);
    }
    if (phase == 4) return low_rank_outer_.run(step, 1, piece);
    if (phase == 0 && piece >= inner_pieces(step)) {
      return low_rank_inner_.run(step, 0, piece - inner_pieces(step));
    }
    if (phase == 3 && piece >= outer_pieces()) {
      return low_rank_outer_.run(step, 0, piece - outer_pieces());
    }
    kernels::RowMap rows;
    rows.count = step.tokens;
    if (phase == 0 && is_split(step)) {
      const int64_t blocks = divide_up(hidden_.width, hidden_rows_);
      const kernels::Weight& weight = piece < blocks ? *weights_.gate : *weights_.up;
      const Half& half = piece < blocks ? gate_ : up_;
      const int64_t begin = piece % blocks * hidden_rows_;
      products_.linear(weight, begin, std::min(hidden_.width, begin + hidden_rows_),
                       activations(in_, weight), rows, nullptr, nullptr, half.product.out->data,
                       hidden_.width);
    } else if (phase == 0) {
      run_hidden(kernel_, products_, weights_, in_, hidden_, rows, piece * hidden_rows_,
                 std::min(hidden_.width, (piece + 1) * hidden_rows_));
    } else {
      products_.linear(*weights_.down, piece * out_rows_,
                       std::min(out_.width, (piece + 1) * out_rows_),
                       activations(hidden_, *weights_.down), rows, nullptr,
                       residual_ ? &multiplier_ : nullptr, out_.data, out_.width);
    }
  }
  std::string kernel_name() const override {
    return std::string("cpu.") + kernel_.isa + ".gate_up_" + weight_kernel_name(*weights_.gate) +
           "+" + weight_kernel_name(*weights_.down) + (residual_ ? "+residual" : "") +
           (low_rank_inner_.empty() && low_rank_outer_.empty() ? "" : "+low_rank");
  }
  uint64_t weight_bytes() const override {
    return weights_.bytes() + low_rank_inner_.weight_bytes() + low_rank_outer_.weight_bytes();
  }

 private:
  /// Gate or up before the activation; room only where there are adapters.
  struct Half {
    Half(PlanContext& context, const OpNode& node, const char* role)
        : product{nullptr, node.weight(role)} {
      if (context.adapters == nullptr) return;
      product.out = &context.shared_rows(std::string("dense_") + role, context.max_tokens,
                                         node.integer("intermediate"));
    }
    Product product;
  };

  int64_t inner_pieces(const StepState& step) const {
    return divide_up(hidden_.width, hidden_rows_) * (is_split(step) ? 2 : 1);
  }
  int64_t outer_pieces() const { return divide_up(out_.width, out_rows_); }
  bool is_split(const StepState& step) const {
    return step.num_adapters > 0 && !low_rank_inner_.empty();
  }

  const kernels::CpuKernels& kernel_;
  const Products& products_;
  RowBuffer& in_;
  RowBuffer& out_;
  RowBuffer& hidden_;
  FeedForwardWeights weights_;
  Half gate_, up_;
  LowRankProducts low_rank_inner_, low_rank_outer_;
  float multiplier_;
  bool residual_;
  int64_t hidden_rows_ = 0, out_rows_ = 0;
};

std::unique_ptr<PlannedOp> plan_dense_ffn(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedDenseFfn>(context, node);
}

VITRINE_REGISTER_OP((OpDefinition{"dense_ffn", plan_dense_ffn}));

}  // namespace
}  // namespace vitrine::ops
