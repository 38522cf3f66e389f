// SPDX-License-Identifier: Apache-2.0
// attention: norm, clamp, rotation and the write to the KV cache, then attention over it.
#include <algorithm>

#include "backend_cuda/cuda_op.h"
#include "backend_cuda/plan_builder.h"
#include "kernels/cuda/attention/attention_mma.h"
#include "kernels/cuda/kv/rope_kv.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_cuda {
namespace {

using ops::OpNode;

/// Kinds of attention that no architecture of this path has.
void refuse_others(const OpNode& node, const ops::AttentionParameters& parameters,
                   int64_t head_dim) {
  if (parameters.rotary_dim == 0) refuse_op(node, "does not rotate its heads");
  if (parameters.rotates_neighbours) refuse_op(node, "rotates neighbours");
  if (parameters.rotary_dim < head_dim && parameters.norms_whole_row) {
    refuse_op(node, "rotates a part of heads that are normed as one row");
  }
  if (parameters.window > 0 && parameters.sinks.empty()) {
    refuse_op(node, "has attention with a window and no sinks");
  }
}

void plan(PlanBuilder& builder, const OpNode& node) {
  const auto& parameters = node.as<ops::AttentionParameters>();
  refuse_others(node, parameters, builder.graph().head_dim);
  // Keys and values follow the queries in the same rows (qkv.cc).
  const RowsBuffer& qkv = builder.value(node.inputs[0]);
  const RowsBuffer& keys = builder.value(node.inputs[1]);
  RowsBuffer& out = builder.value(node.outputs[0]);
  out.is_for_products = true;
  const auto heads = static_cast<int32_t>(builder.graph().num_heads);
  auto* queries =
      static_cast<float*>(builder.scratch("rotated queries", out.capacity * out.width * 4));
  kernels::cuda::RopeKv rope;
  rope.heads = heads;
  rope.qkv = qkv.data;
  rope.qkv_stride = qkv.stride;
  if (!parameters.query_norm.empty()) {
    const bool whole = rope.norm_whole_row = parameters.norms_whole_row;
    const int64_t head_dim = builder.graph().head_dim;
    rope.query_norm =
        builder.weights().vector({{parameters.query_norm, whole ? qkv.width : head_dim}});
    rope.key_norm =
        builder.weights().vector({{parameters.key_norm, whole ? keys.width : head_dim}});
  }
  rope.eps = static_cast<float>(parameters.eps);
  rope.clip = static_cast<float>(parameters.clip);
  rope.rotary_dim = static_cast<int32_t>(parameters.rotary_dim);
  rope.cos = builder.rope_cos();
  rope.sin = builder.rope_sin();
  rope.cache = builder.kv()[static_cast<size_t>(node.layer)];
  rope.query = queries;
  builder.add(
      [rope](const StepMemory& memory, Stream stream) {
        kernels::cuda::RopeKv own = rope;
        own.positions = memory.positions;
        own.blocks = {memory.tables, memory.table_stride, memory.sequences};
        own.branches = memory.shape.branches ? memory.branches : nullptr;
        return kernels::cuda::rope_kv_write(own, memory.shape.tokens, stream);
      },
      "rope+kv_write");

  kernels::cuda::AttentionArguments attention;
  attention.kv = rope.cache;
  attention.heads = heads;
  attention.scale = static_cast<float>(parameters.scale);
  attention.window = static_cast<int32_t>(std::min<int64_t>(parameters.window, INT32_MAX));
  if (!parameters.sinks.empty()) {
    attention.sinks = builder.weights().vector({{parameters.sinks, heads}});
  }
  attention.queries = queries;
  attention.out = out.data;
  attention.tokens = static_cast<int32_t>(builder.max_tokens());
  attention.ranges = (builder.options().max_context + kernels::cuda::kAttentionRange - 1) /
                     kernels::cuda::kAttentionRange;
  if (attention.ranges > 1) {
    attention.scratch = static_cast<float*>(
        builder.scratch("ranges of attention", attention_scratch_floats(attention) * 4));
  }
  const bool on_tensor_cores =
      attends_on_tensor_cores(builder.options(), builder.kv_type(), builder.graph());
  builder.add(
      [attention, on_tensor_cores, &out](const StepMemory& memory, Stream stream) {
        kernels::cuda::AttentionArguments own = attention;
        if (out.is_made_as_bf16()) {
          own.out_bf16 = reinterpret_cast<uint16_t*>(out.forms.begin()->second);
        }
        own.tokens = memory.shape.tokens;
        own.ranges = memory.shape.ranges;
        own.positions = memory.positions;
        own.blocks = {memory.tables, memory.table_stride, memory.sequences};
        own.tiles = memory.tiles;
        own.tile_count = memory.shape.tokens;
        return on_tensor_cores ? kernels::cuda::attention_mma(own, memory.mma_rows, stream)
                               : kernels::cuda::attention(own, memory.queries, stream);
      },
      std::string(on_tensor_cores ? "attention_mma_" : "attention_") +
          (rope.cache.is_integers                                  ? "i16"
           : rope.cache.format == kernels::cuda::FloatFormat::kF32 ? "f32"
           : rope.cache.format == kernels::cuda::FloatFormat::kF16 ? "f16"
                                                                   : "bf16"));
  builder.add_forms(out, 1);
}

VITRINE_REGISTER_CUDA_OP((CudaOp{.type = "attention", .plan = plan}));

}  // namespace
}  // namespace vitrine::backend_cuda
