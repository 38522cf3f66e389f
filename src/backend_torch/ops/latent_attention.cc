// SPDX-License-Identifier: Apache-2.0
// latent_attention in its expanded form: each head's keys and values are made of the latents of all
// positions, then it is plain attention. The fused path has the absorbed form, so that the two
// check each other.
#include <limits>
#include <vector>

#include "backend_torch/heads.h"
#include "backend_torch/torch_op.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_torch {
namespace {

void reference_latent_attention(ReferenceStep& step, const ops::OpNode& node) {
  const auto& own = node.as<ops::LatentAttentionParameters>();
  const ops::LatentModule& made = own.keys_and_values;
  const int64_t heads = made.heads, latent = made.latent, rotary = own.rotary_dim;
  const int64_t tokens = step.token_ids.size(0);
  const at::Tensor cos = at::index_select(step.rope_cos, 0, step.positions).unsqueeze(1);
  const at::Tensor sin = at::index_select(step.rope_sin, 0, step.positions).unsqueeze(1);
  const at::Tensor raw_query = step.input(node, 0).view({tokens, heads, own.query_dim()});
  const at::Tensor turned_query =
      rotate(raw_query.narrow(-1, made.key_rows, rotary), cos, sin, rotary, own.rotates_neighbours);
  const at::Tensor query = at::cat({raw_query.narrow(-1, 0, made.key_rows), turned_query}, -1);
  const at::Tensor raw_key = step.input(node, 1).view({tokens, 1, own.key_dim()});
  at::Tensor key = at::cat(
      {norm_rows(raw_key.narrow(-1, 0, latent), step.weights->vector(own.norm, latent), own.eps),
       rotate(raw_key.narrow(-1, latent, rotary), cos, sin, rotary, own.rotates_neighbours)},
      -1);
  ReferenceKv& kv = (*step.kv)[static_cast<size_t>(node.layer)];
  if (kv.are_integers) key = round_heads(key);
  // Where its type is narrower, this rounds.
  kv.keys.index_copy_(0, step.new_slots,
                      key.reshape({tokens, own.key_dim()}).to(kv.keys.scalar_type()));

  const at::Tensor matrix =
      step.weights->matrix(made.module, heads * (made.key_rows + made.value_rows), latent)
          .view({heads, made.key_rows + made.value_rows, latent});
  std::vector<at::Tensor> outputs;
  for (const ReferenceSpan& span : step.spans) {
    const int64_t total = span.past + span.num_tokens;
    const at::Tensor kept = at::index_select(kv.keys, 0, span.slots).to(at::kFloat);
    const at::Tensor latents = kept.narrow(1, 0, latent).t().unsqueeze(0);  // [1, latent, total]
    const at::Tensor made_of_them =
        at::matmul(matrix, latents.expand({heads, latent, total}));  // [heads, rows, total]
    const at::Tensor rotated = kept.narrow(1, latent, rotary).t().unsqueeze(0);
    const at::Tensor keys = at::cat(
        {made_of_them.narrow(1, 0, made.key_rows), rotated.expand({heads, rotary, total})}, 1);
    const at::Tensor values =
        made_of_them.narrow(1, made.key_rows, made.value_rows).transpose(1, 2);
    const at::Tensor q = query.narrow(0, span.first_token, span.num_tokens).transpose(0, 1);
    at::Tensor scores = at::matmul(q, keys).mul(own.scale);
    const at::Tensor seen =
        step.positions.narrow(0, span.first_token, span.num_tokens).unsqueeze(1);
    const at::Tensor where = at::arange(total, step.positions.options()).unsqueeze(0);
    scores =
        scores.masked_fill(where.gt(seen).unsqueeze(0), -std::numeric_limits<float>::infinity());
    outputs.push_back(at::matmul(at::softmax(scores, -1), values)
                          .transpose(0, 1)
                          .reshape({span.num_tokens, heads * made.value_rows}));
  }
  step.value(node.outputs[0]) = outputs.size() == 1 ? outputs[0] : at::cat(outputs, 0);
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"latent_attention", reference_latent_attention}));

}  // namespace
}  // namespace vitrine::backend_torch
