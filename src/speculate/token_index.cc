// SPDX-License-Identifier: Apache-2.0
#include "token_index.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace vitrine::speculate {

TokenIndex::TokenIndex(int64_t capacity, int32_t min_match) {
  const size_t slots = std::bit_ceil(static_cast<size_t>(std::max<int64_t>(capacity, 2)));
  tokens_.resize(slots);
  for (int order = 0; order < kOrders; ++order) {
    Chains& chains = chains_[static_cast<size_t>(order)];
    chains.length = min_match << order;
    chains.newest.resize(slots);
    chains.older.resize(slots);
  }
}

template <typename TokenAt>
size_t TokenIndex::hash(int32_t length, TokenAt&& token_at) const {
  uint64_t sum = static_cast<uint64_t>(length);
  for (int32_t i = 0; i < length; ++i) {
    sum = (sum ^ static_cast<uint32_t>(token_at(i))) * 0x9E3779B97F4A7C15;
    sum ^= sum >> 29;
  }
  return static_cast<size_t>(sum * 0xBF58476D1CE4E5B9 >> 32) & (tokens_.size() - 1);
}

size_t TokenIndex::hash_at(const Chains& chains, int64_t end) const {
  return hash(chains.length, [&](int32_t i) { return tokens_[slot(end - chains.length + i)]; });
}

void TokenIndex::append(int32_t token) {
  // Places have 32 bits: behind so many tokens it begins anew.
  if (size_ >= std::numeric_limits<int32_t>::max()) {
    size_ = 0;
    for (Chains& chains : chains_) std::ranges::fill(chains.newest, 0);
  }
  tokens_[slot(size_)] = token;
  ++size_;
  for (Chains& chains : chains_) {
    if (size_ < chains.length) break;
    uint32_t& newest = chains.newest[hash_at(chains, size_)];
    chains.older[slot(size_)] = newest;
    newest = static_cast<uint32_t>(size_);
  }
}

void TokenIndex::truncate(int64_t length) {
  for (; size_ > length; --size_) {
    for (Chains& chains : chains_) {
      if (size_ < chains.length) break;
      chains.newest[hash_at(chains, size_)] = chains.older[slot(size_)];
    }
  }
}

int32_t TokenIndex::match_length(std::span<const int32_t> context, int64_t end) const {
  const int64_t most = std::min({int64_t{kMaxMatch}, std::ssize(context), end - oldest()});
  int32_t length = 0;
  while (length < most) {
    const int32_t token = tokens_[slot(end - 1 - length)];
    if (token == kNoToken || token != context[context.size() - 1 - static_cast<size_t>(length)]) {
      break;
    }
    ++length;
  }
  return length;
}

size_t TokenIndex::find(std::span<const int32_t> context, std::span<Match> matches) const {
  size_t count = 0;
  int32_t found_above = std::numeric_limits<int32_t>::max();  // by the chains of longer pieces
  for (int order = kOrders; order-- > 0 && count < matches.size();) {
    const Chains& chains = chains_[static_cast<size_t>(order)];
    if (std::ssize(context) < chains.length) continue;
    const auto piece = context.last(static_cast<size_t>(chains.length));
    int64_t end =
        chains
            .newest[hash(chains.length, [&](int32_t i) { return piece[static_cast<size_t>(i)]; })];
    for (int steps = 0; steps < kMaxSteps && count < matches.size(); ++steps) {
      // A slot that was taken by a newer place leads nowhere.
      if (end == 0 || end - chains.length < oldest() || end > size_) break;
      const int32_t length = end < size_ ? match_length(context, end) : 0;
      if (length >= chains.length && length < found_above) matches[count++] = {end, length};
      const int64_t before = chains.older[slot(end)];
      if (before >= end) break;
      end = before;
    }
    found_above = chains.length;
  }
  return count;
}

}  // namespace vitrine::speculate
