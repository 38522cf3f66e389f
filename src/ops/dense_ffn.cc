// dense_ffn: a SwiGLU block on every token; a dense layer's (added to the residual stream) or a
// shared expert (its output is a value that `combine` adds).
#include "ops/feed_forward.h"
#include "ops/op.h"
#include "ops/reference.h"

namespace vitrine::ops {
namespace {

class PlannedDenseFfn final : public PlannedOp {
 public:
  PlannedDenseFfn(PlanContext& context, const OpNode& node)
      : kernel_(context.kernel),
        products_(context.products),
        in_(context.value(node.inputs[0])),
        out_(context.value(node.outputs[0])),
        hidden_(
            context.shared_rows("dense_hidden", context.max_tokens, node.integer("intermediate"))),
        multiplier_(static_cast<float>(node.attribute("multiplier", 1.0))),
        residual_(node.flag("residual")) {
    const int64_t intermediate = node.integer("intermediate");
    weights_.gate = &context.weights.matrix(node.weight("gate"), intermediate, in_.width);
    weights_.up = &context.weights.matrix(node.weight("up"), intermediate, in_.width);
    weights_.down = &context.weights.matrix(node.weight("down"), out_.width, intermediate);
    context.need(in_, *weights_.gate);
    context.need(in_, *weights_.up);
    context.need(hidden_, *weights_.down);
    hidden_rows_ = hidden_rows_per_piece(hidden_, context.threads);
    out_rows_ = rows_per_piece(out_.width, context.threads, kernels::kTileRows);
  }

  int phases() const override { return 2; }
  int64_t pieces(const StepState&, int phase) const override {
    return phase == 0 ? divide_up(hidden_.width, hidden_rows_) : divide_up(out_.width, out_rows_);
  }
  void run(const StepState& step, int phase, int64_t piece) override {
    kernels::RowMap rows;
    rows.count = step.tokens;
    if (phase == 0) {
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
           "+" + weight_kernel_name(*weights_.down) + (residual_ ? "+residual" : "");
  }
  uint64_t weight_bytes() const override { return weights_.bytes(); }

 private:
  const kernels::CpuKernels& kernel_;
  const Products& products_;
  RowBuffer& in_;
  RowBuffer& out_;
  RowBuffer& hidden_;
  FeedForwardWeights weights_;
  float multiplier_;
  bool residual_;
  int64_t hidden_rows_ = 0, out_rows_ = 0;
};

std::unique_ptr<PlannedOp> plan(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedDenseFfn>(context, node);
}

void reference(ReferenceStep& step, const OpNode& node) {
  const Value& output = step.graph->values[static_cast<size_t>(node.outputs[0])];
  at::Tensor out =
      step.feed_forward(step.input(node, 0), node.weight("gate"), node.weight("up"),
                        node.weight("down"), output.width, node.integer("intermediate"));
  at::Tensor& target = step.value(node.outputs[0]);
  target = node.flag("residual") ? target.add(out, node.attribute("multiplier", 1.0)) : out;
}

VITRINE_REGISTER_OP((OpDefinition{"dense_ffn", plan, reference}));

}  // namespace
}  // namespace vitrine::ops
