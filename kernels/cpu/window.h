// SPDX-License-Identifier: Apache-2.0
// Which positions the tokens of a span see where attention has a window.
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

}  // namespace vitrine::kernels
