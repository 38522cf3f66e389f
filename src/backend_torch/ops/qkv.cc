// SPDX-License-Identifier: Apache-2.0
// qkv: the query, key and value projections of one normed input.
#include <array>

#include "backend_torch/low_rank.h"
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

void reference_qkv(ReferenceStep& step, const ops::OpNode& node) {
  const auto& own = node.as<ops::QkvParameters>();
  for (size_t i = 0; i < 3; ++i) {
    const ops::Value& output = step.graph->values[static_cast<size_t>(node.outputs[i])];
    at::Tensor& out = step.value(node.outputs[i]);
    out = step.linear(step.input(node, 0), own.matrices[i], output.width, own.biases[i]);
    add_low_rank(step, step.input(node, 0), own.matrices[i], 1.0, out);
  }
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"qkv", reference_qkv}));

}  // namespace
}  // namespace vitrine::backend_torch
