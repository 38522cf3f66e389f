// SPDX-License-Identifier: Apache-2.0
#include "token_slices.h"

#include <bit>

namespace vitrine::constrain {

namespace {

// Above, the slices' masks would take more memory than they are worth.
constexpr size_t kMaxSlicedVocabulary = size_t{1} << 20;

constexpr uint32_t kOther = TokenSlices::kKinds;

constexpr uint32_t kind_of(uint8_t byte) {
  if (byte >= 'a' && byte <= 'z') return 0;
  if (byte >= 'A' && byte <= 'Z') return 1;
  if (byte >= '0' && byte <= '9') return 2;
  if (byte == ' ') return 3;
  if (byte == '-' || byte == '_') return 4;
  return byte > 0x20 && byte < 0x7F && byte != '"' && byte != '\\' ? 5 : kOther;
}

std::array<ByteSet, TokenSlices::kSets> make_bytes() {
  std::array<ByteSet, TokenSlices::kSets> out;
  for (uint32_t set = 0; set < TokenSlices::kSets; ++set) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t kind = kind_of(static_cast<uint8_t>(byte));
      if (kind != kOther && (set >> kind & 1) != 0) out[set].add(static_cast<uint8_t>(byte));
    }
  }
  return out;
}

}  // namespace

const ByteSet& TokenSlices::bytes_of(uint32_t set) {
  static const std::array<ByteSet, kSets> kBytes = make_bytes();
  return kBytes[set];
}

TokenSlices::Profile TokenSlices::profile_of(std::string_view token) {
  Profile out;
  while (out.length < kOdd && (token.empty() || token.size() > kLengths[out.length])) ++out.length;
  for (const char byte : token) {
    const uint32_t kind = kind_of(static_cast<uint8_t>(byte));
    if (kind == kOther) {
      out.length = kOdd;
    } else {
      out.kinds = static_cast<uint8_t>(out.kinds | 1U << kind);
    }
  }
  return out;
}

void TokenSlices::build(const std::vector<Profile>& profiles) {
  if (profiles.size() > kMaxSlicedVocabulary) return;
  const size_t words = (profiles.size() + 31) / 32;
  masks_.assign(kSets * kLengths.size(), std::vector<uint32_t>(words));
  counts_.assign(masks_.size(), 0);
  for (size_t id = 0; id < profiles.size(); ++id) {
    if (profiles[id].length == kOdd) continue;
    masks_[profiles[id].kinds * kLengths.size() + profiles[id].length][id / 32] |= 1U << (id % 32);
  }
  // Sums over all subsets, kind by kind, then over shorter lengths.
  const auto unite = [&](size_t into, size_t from) {
    for (size_t i = 0; i < words; ++i) masks_[into][i] |= masks_[from][i];
  };
  for (uint32_t kind = 0; kind < kKinds; ++kind) {
    for (size_t set = 0; set < kSets; ++set) {
      if ((set >> kind & 1) == 0) continue;
      for (size_t length = 0; length < kLengths.size(); ++length) {
        unite(set * kLengths.size() + length,
              (set & ~(size_t{1} << kind)) * kLengths.size() + length);
      }
    }
  }
  for (size_t at = 0; at < masks_.size(); ++at) {
    if (at % kLengths.size() != 0) unite(at, at - 1);
    for (const uint32_t word : masks_[at])
      counts_[at] += static_cast<uint32_t>(std::popcount(word));
  }
}

}  // namespace vitrine::constrain
