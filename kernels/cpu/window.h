// SPDX-License-Identifier: Apache-2.0
// Where the walk of attention begins: which positions the tokens of a span see where there is a
// window, and what a head starts from where it has a sink.
#pragma once

#include "cpu_kernels.h"

namespace vitrine::kernels {

/// The first position that a token of the span sees.
constexpr int32_t first_seen(const AttentionSpan& span, int32_t position) {
  return span.window == 0 || position < span.window ? 0 : position - span.window + 1;
}
/// Where a walk over the blocks begins for a token and those behind it.
constexpr int32_t first_block_seen(const AttentionSpan& span, int32_t position) {
  return first_seen(span, position) / kAttentionBlock * kAttentionBlock;
}
/// How many of `tokens` tokens, the first at `position`, see something of a block from `start` on
/// or of what lies before it: those behind them begin further up.
constexpr int32_t tokens_above(const AttentionSpan& span, int32_t position, int32_t tokens,
                               int32_t start) {
  if (span.window == 0) return tokens;
  const int64_t last = int64_t{start} + kAttentionBlock + span.window - 1 - position;
  return last < tokens ? static_cast<int32_t>(last) : tokens;
}

/// The running maximum and sum of one of the span's heads before its first block.
constexpr float first_max(const AttentionSpan& span, int32_t head) {
  return span.sinks != nullptr ? span.sinks[head] : -__builtin_inff();
}
constexpr float first_sum(const AttentionSpan& span) { return span.sinks != nullptr ? 1.0f : 0.0f; }

}  // namespace vitrine::kernels
