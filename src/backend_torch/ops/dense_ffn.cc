// SPDX-License-Identifier: Apache-2.0
// dense_ffn: a SwiGLU block on every token.
#include "backend_torch/low_rank.h"
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

void reference_dense_ffn(ReferenceStep& step, const ops::OpNode& node) {
  const ops::Value& output = step.graph->values[static_cast<size_t>(node.outputs[0])];
  const at::Tensor& x = step.input(node, 0);
  const auto& own = node.as<ops::DenseParameters>();
  const FeedForwardRows rows =
      adapted_feed_forward(step, x,
                           {own.gate, own.up, own.down, output.width, own.intermediate,
                            /*has_biases=*/false, own.gating});
  const at::Tensor& out = rows.out;
  if (step.taps != nullptr) step.own_rows["dense_hidden"] = rows.hidden;
  at::Tensor& target = step.value(node.outputs[0]);
  target = own.adds_to_residual ? target.add(out, own.multiplier) : out;
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"dense_ffn", reference_dense_ffn}));

}  // namespace
}  // namespace vitrine::backend_torch
