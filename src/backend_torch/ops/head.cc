// SPDX-License-Identifier: Apache-2.0
// head: logits of the requested rows, and of each its statistics, its digest and its best token.
#include <algorithm>
#include <tuple>

#include "backend_torch/torch_op.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/logits_hash.h"
#include "ops/decoder_ops.h"
#include "ops/plan.h"

namespace vitrine::backend_torch {
namespace {

// The digest of kernels/cpu/logits_hash.h, [rows, 4] as 16-bit pieces, lowest first: what float32
// holds. int64 wraps where the kernel's unsigned numbers do; scalars stay below 2^53, since some
// devices pass them as doubles.
at::Tensor logits_digest(const at::Tensor& logits) {
  using kernels::kHashFactor, kernels::kHashOffset, kernels::kHashRows, kernels::kHeadBlock;
  const auto scalar = [](uint64_t value) { return static_cast<int64_t>(value); };
  const int64_t mask = 0xFFFFFFFF, upper_one = 0x10000;
  const int64_t rows = logits.size(0), blocks = ops::divide_up(logits.size(1), kHeadBlock);
  const int64_t per_key_row = kHeadBlock / kHashRows / kHashRows;
  const auto integers = logits.options().dtype(at::kLong);
  const auto permutation = [](const at::Tensor& t) { return t.mul(t.mul(2).add(1)); };
  const at::Tensor all_keys = permutation(at::arange(2 * kHashRows * per_key_row, integers)
                                              .mul(scalar(kHashFactor))
                                              .add(scalar(kHashOffset))
                                              .bitwise_and(mask))
                                  .view({2, kHashRows, per_key_row});
  // Two signed halves of each, the lower first: [key rows, halves].
  const auto halves_of = [&](const at::Tensor& keys) {
    return keys.contiguous()
        .view(at::kShort)
        .view({-1, 4})
        .narrow(1, 0, 2)
        .to(at::kLong)
        .reshape({kHashRows, 2 * per_key_row});
  };
  const at::Tensor low = halves_of(all_keys[0].bitwise_or(1).bitwise_and(mask - upper_one));
  const at::Tensor high = halves_of(all_keys[1].bitwise_or(upper_one)).unsqueeze(1);
  const at::Tensor words = at::constant_pad_nd(logits, {0, blocks * kHeadBlock - logits.size(1)}, 0)
                               .view(at::kShort)
                               .to(at::kLong)
                               .view({rows, blocks, kHashRows, kHashRows, 2 * per_key_row});
  const auto sums = [&](const at::Tensor& keys) { return words.mul(keys).sum({-3, -2, -1}); };
  const at::Tensor hashes = sums(low).add(1).bitwise_and(mask).add(sums(high).mul(mask + 1));
  const at::Tensor factors =
      permutation(at::arange(blocks, integers).mul(2).add(1).mul(scalar(kHashFactor)));
  return hashes.mul(factors).sum(-1, /*keepdim=*/true).view(at::kShort).to(at::kFloat);
}

void reference_head(ReferenceStep& step, const ops::OpNode& node) {
  at::Tensor logits = step.linear(step.input(node, 0), node.as<ops::HeadParameters>().matrix,
                                  step.graph->vocab_size);
  if (const double cap = node.as<ops::HeadParameters>().soft_cap; cap > 0) {
    logits = at::tanh(logits.div(cap)).mul(cap);
  }
  const double multiplier = node.as<ops::HeadParameters>().multiplier;
  if (multiplier != 1.0) logits = logits.mul(multiplier);
  step.logits = logits;
  auto [largest, best] = at::max(logits, -1);
  // A NaN is the largest of its row, and no token.
  best = best.masked_fill(largest.ne(largest), -1);
  step.chosen_ids = at::where(step.row_targets.lt(0), best, step.row_targets);
  if (!step.statistics) return;
  at::Tensor log_sum_exp = at::logsumexp(logits, {-1}, /*keepdim=*/true);
  at::Tensor log_probs = logits.sub(log_sum_exp);
  at::Tensor entropy = log_probs.exp().mul(log_probs).sum(-1, true).neg();
  at::Tensor chosen = at::gather(logits, 1, step.chosen_ids.clamp_min(0).unsqueeze(1));
  step.row_floats = at::cat({chosen, log_sum_exp, entropy, logits_digest(logits)}, 1);
  const int64_t count = std::min<int64_t>(kAuditTopTokens, step.graph->vocab_size);
  std::tie(step.top_logits, step.top_ids) = at::topk(logits, count, -1);
  step.observe(step.row_floats);
  step.observe(step.top_ids);
  step.observe(step.top_logits);
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"head", reference_head}));

}  // namespace
}  // namespace vitrine::backend_torch
