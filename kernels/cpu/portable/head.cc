// SPDX-License-Identifier: Apache-2.0
// Statistics of the output head's logits; head_merge serves every table.
#include "../logits_hash.h"
#include "../top_list.h"
#include "math.h"
#include "portable.h"

namespace vitrine::kernels::portable {

void head_block(float* logits, int64_t begin, int64_t end, float multiplier, bool statistics,
                HeadBlockStats* stats, const void* /*next*/) {
  if (multiplier != 1.0f) {
    for (int64_t i = begin; i < end; ++i) logits[i] = logits[i] * multiplier;
  }
  MaxLanes lanes_max;
  bool has_nan = false;
  int32_t count = 0;
  for (int64_t i = begin; i < end; ++i) {
    if (logits[i] != logits[i]) {
      has_nan = true;
      continue;
    }
    lanes_max.take(i - begin, logits[i]);
    count = insert_top(logits[i], static_cast<int32_t>(i), kTopTokens, count, stats->top_logits,
                       stats->top_ids);
  }
  stats->count = count;
  stats->hash = statistics ? hash_logits(logits + begin, end - begin) : 0;
  const float max = lanes_max.max();
  if (has_nan) {
    stats->max = stats->sum_exp = stats->sum_exp_logit = NAN;
    return;
  }
  stats->max = max;
  stats->sum_exp = stats->sum_exp_logit = 0.0f;
  if (!statistics || max == -INFINITY) return;  // -inf: nothing but masked logits
  Lanes sum_exp;
  Lanes sum_exp_logit;
  for (int64_t i = begin; i < end; ++i) {
    const float distance = logits[i] - max;
    if (distance < kExpStatisticsLow) continue;  // nothing; 0 * inf would be NaN
    const float e = exp_statistics(distance);
    sum_exp.add_at(i - begin, e);
    sum_exp_logit.fma_at(i - begin, e, distance);
  }
  stats->sum_exp = sum_exp.sum();
  stats->sum_exp_logit = sum_exp_logit.sum();
}

void head_merge(const HeadBlockStats* blocks, int32_t count, HeadStats* stats) {
  double max = -INFINITY;
  double sum = 0.0;
  double sum_logit = 0.0;  // of exp(logit - max) * (logit - max)
  stats->count = 0;
  stats->digest = 0;
  for (int32_t b = 0; b < count; ++b) {
    const HeadBlockStats& block = blocks[b];
    stats->digest += hash_block_factor(static_cast<uint64_t>(b)) * block.hash;
    for (int32_t i = 0; i < block.count; ++i) {
      const int32_t before = stats->count;
      if (before == kTopTokens && !(block.top_logits[i] > stats->top_logits[before - 1])) break;
      stats->count = insert_top(block.top_logits[i], block.top_ids[i], kTopTokens, before,
                                stats->top_logits, stats->top_ids);
    }
    if (block.max == -INFINITY) continue;
    const double block_max = block.max;
    if (block_max > max) {
      const double shift = max - block_max;  // -inf for the first block
      const double factor = std::exp(shift);
      sum_logit = sum > 0.0 ? factor * (sum_logit + sum * shift) : 0.0;
      sum = sum * factor + block.sum_exp;
      sum_logit = sum_logit + block.sum_exp_logit;
      max = block_max;
    } else {  // also where block_max is NaN: everything becomes NaN
      const double shift = block_max - max;
      const double factor = std::exp(shift);
      sum = sum + factor * block.sum_exp;
      sum_logit = sum_logit + factor * (block.sum_exp_logit + block.sum_exp * shift);
    }
  }
  const double log_sum = std::log(sum);
  stats->log_sum_exp = static_cast<float>(max + log_sum);
  stats->entropy = static_cast<float>(log_sum - sum_logit / sum);
}

}  // namespace vitrine::kernels::portable
