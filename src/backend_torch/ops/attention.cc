// SPDX-License-Identifier: Apache-2.0
// attention: norms, clamp and rotary embedding, the write to the KV cache, and softmax attention
// over it.
#include <limits>
#include <vector>

#include "backend_torch/heads.h"
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

void reference_attention(ReferenceStep& step, const ops::OpNode& node) {
  const auto& own = node.as<ops::AttentionParameters>();
  const ops::Graph& graph = *step.graph;
  const ops::KvShape shape = graph.kv_shape(node.layer);
  const int64_t heads = graph.num_heads, kv_heads = shape.kv_heads, dim = shape.head_dim;
  const int64_t tokens = step.token_ids.size(0);
  at::Tensor query = step.input(node, 0);
  const bool has_keys = node.inputs.size() > 1;  // else they are another layer's
  at::Tensor key, value;
  if (has_keys) {
    key = step.input(node, 1);
    value = step.input(node, 2);
  }
  const double eps = own.eps;
  // One weight for each head (qwen3), or one over the whole row (olmoe).
  const bool has_norm = !own.query_norm.empty();
  const bool is_whole_row = own.norms_whole_row;
  if (has_norm && is_whole_row) {
    query = norm_rows(query, step.weights->vector(own.query_norm, heads * dim), eps);
    key = norm_rows(key, step.weights->vector(own.key_norm, kv_heads * dim), eps);
  }
  at::Tensor gate;
  if (own.has_output_gate) {  // behind each head's query
    const at::Tensor both = query.view({tokens, heads, 2, dim});
    query = both.select(2, 0);
    gate = both.select(2, 1).reshape({tokens, heads * dim}).sigmoid();
  }
  query = query.reshape({tokens, heads, dim});
  if (has_keys) key = key.view({tokens, kv_heads, dim});
  if (has_norm && !is_whole_row) {
    query = norm_rows(query, step.weights->vector(own.query_norm, dim), eps);
    if (has_keys) key = norm_rows(key, step.weights->vector(own.key_norm, dim), eps);
  }
  if (has_keys && own.norms_values) {
    value = norm_rows(value.view({tokens, kv_heads, dim}), eps).view({tokens, kv_heads * dim});
  }
  if (const double clip = own.clip; clip > 0) {
    query = query.clamp(-clip, clip);
    if (has_keys) key = key.clamp(-clip, clip);
    if (has_keys) value = value.clamp(-clip, clip);
  }
  const at::Tensor& cosines = own.is_sliding_kind ? step.sliding_cos : step.rope_cos;
  const at::Tensor& sines = own.is_sliding_kind ? step.sliding_sin : step.rope_sin;
  at::Tensor cos = at::index_select(cosines, 0, step.positions).unsqueeze(1);
  at::Tensor sin = at::index_select(sines, 0, step.positions).unsqueeze(1);
  query = rotate(query, cos, sin, own.rotary_dim, own.rotates_neighbours);
  if (has_keys) key = rotate(key, cos, sin, own.rotary_dim, own.rotates_neighbours);

  ReferenceKv& kv = (*step.kv)[static_cast<size_t>(shape.source)];
  if (kv.are_integers) query = round_heads(query);
  const auto keep = [&](at::Tensor& cache, const at::Tensor& rows) {
    const at::Tensor kept =
        kv.are_integers ? round_heads(rows.reshape({tokens, kv_heads, dim})) : rows;
    // Where its type is narrower, this rounds.
    cache.index_copy_(0, step.new_slots,
                      kept.reshape({tokens, kv_heads * dim}).to(cache.scalar_type()));
  };
  if (has_keys) {
    keep(kv.keys, key);
    keep(kv.values, value);
  }

  std::vector<at::Tensor> outputs;
  for (const ReferenceSpan& span : step.spans) {
    const int64_t total = span.past + span.num_tokens;
    auto gather = [&](const at::Tensor& cache) {
      return at::index_select(cache, 0, span.slots)
          .to(at::kFloat)
          .view({total, kv_heads, 1, dim})
          .expand({total, kv_heads, heads / kv_heads, dim})
          .reshape({total, heads, dim})
          .transpose(0, 1);
    };
    at::Tensor q = query.narrow(0, span.first_token, span.num_tokens).transpose(0, 1);
    at::Tensor scores = at::matmul(q, gather(kv.keys).transpose(1, 2)).mul(own.scale);
    at::Tensor seen = step.positions.narrow(0, span.first_token, span.num_tokens).unsqueeze(1);
    at::Tensor where = at::arange(total, step.positions.options()).unsqueeze(0);
    at::Tensor hidden = where.gt(seen);
    if (own.window > 0) hidden = hidden.logical_or(where.le(seen.sub(own.window)));
    scores = scores.masked_fill(hidden.unsqueeze(0), -std::numeric_limits<float>::infinity());
    at::Tensor weights;
    if (own.sinks.empty()) {
      weights = at::softmax(scores, -1);
    } else {  // one more score, without a value
      const at::Tensor sinks = step.weights->vector(own.sinks, heads).view({heads, 1, 1});
      const at::Tensor all = at::cat({scores, sinks.expand({heads, span.num_tokens, 1})}, -1);
      weights = at::softmax(all, -1).narrow(-1, 0, total);
    }
    outputs.push_back(at::matmul(weights, gather(kv.values))
                          .transpose(0, 1)
                          .reshape({span.num_tokens, heads * dim}));
  }
  const at::Tensor attended = outputs.size() == 1 ? outputs[0] : at::cat(outputs, 0);
  step.value(node.outputs[0]) = own.has_output_gate ? attended.mul(gate) : attended;
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"attention", reference_attention}));

}  // namespace
}  // namespace vitrine::backend_torch
