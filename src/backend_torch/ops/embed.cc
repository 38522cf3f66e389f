// SPDX-License-Identifier: Apache-2.0
// embed: token ids to the residual stream.
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

void reference_embed(ReferenceStep& step, const ops::OpNode& node) {
  const int64_t width = step.graph->values[static_cast<size_t>(node.outputs[0])].width;
  const at::Tensor& table =
      step.weights->matrix(node.as<ops::EmbedParameters>().table, step.graph->vocab_size, width);
  at::Tensor rows = at::index_select(table, 0, step.token_ids);
  const double multiplier = node.as<ops::EmbedParameters>().multiplier;
  step.value(node.outputs[0]) = multiplier == 1.0 ? rows : rows.mul(multiplier);
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"embed", reference_embed}));

}  // namespace
}  // namespace vitrine::backend_torch
