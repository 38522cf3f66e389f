// SPDX-License-Identifier: Apache-2.0
// embed: rows of the embedding table.
#include "kernels/cuda/embed/embed.h"
#include "backend_cuda/cuda_op.h"
#include "backend_cuda/plan_builder.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_cuda {
namespace {

using ops::OpNode;

void plan(PlanBuilder& builder, const OpNode& node) {
  RowsBuffer& out = builder.value(node.outputs[0]);
  const kernels::cuda::EmbeddingTable& table = builder.weights().table(
      node.as<ops::EmbedParameters>().table, builder.graph().vocab_size, out.width);
  const auto multiplier = static_cast<float>(node.as<ops::EmbedParameters>().multiplier);
  builder.add(
      [&table, &out, multiplier](const StepMemory& memory, Stream stream) {
        return kernels::cuda::embed_rows(table, memory.token_ids, memory.last_chosen_ids,
                                         memory.shape.tokens, multiplier, out.data, stream);
      },
      "embed");
  builder.set_weight_bytes(builder.node_weight_bytes() /
                           static_cast<uint64_t>(builder.graph().vocab_size));
}

VITRINE_REGISTER_CUDA_OP((CudaOp{.type = "embed", .plan = plan}));

}  // namespace
}  // namespace vitrine::backend_cuda
