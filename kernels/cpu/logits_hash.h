// SPDX-License-Identifier: Apache-2.0
// A 64-bit hash of a row of logits, block by block. Internal linkage: each file has its own copy,
// in its own instruction set.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "cpu_kernels.h"

namespace vitrine::kernels {

inline constexpr uint64_t kHashFactor = 0x9E3779B1;  // odd, 2^32 / golden ratio
inline constexpr uint64_t kHashOffset = 0x85EBCA6B;
inline constexpr uint32_t kHashLanes = 16;  // words in a row of a block
inline constexpr uint32_t kHashRows = 8;    // keys of a lane
static_assert(kHashLanes * kHashRows * kHashRows == kHeadBlock);

/// A permutation of the integers of that width (as in RC6): other t, other keys.
template <typename Integer>
static constexpr Integer hash_permutation(Integer t) {
  return t * (2 * t + 1);
}

/// Two 16-bit factors, signed, for the halves of a word. The word in row r of a block meets
/// low[r % 8] for the hash's low half and high[r / 8] for its high half, those of its lane.
struct HashKeys {
  uint32_t low[kHashRows][kHashLanes];
  uint32_t high[kHashRows][kHashLanes];
};

/// A low key has an odd and an even factor and a high key's upper one is odd, so the two of a word
/// have an odd determinant: no two words give the same sums.
static constexpr HashKeys make_hash_keys() {
  HashKeys keys{};
  for (uint32_t i = 0; i < kHashRows * kHashLanes; ++i) {
    const auto key = [](uint32_t n) {
      return hash_permutation(static_cast<uint32_t>(n * kHashFactor + kHashOffset));
    };
    keys.low[i / kHashLanes][i % kHashLanes] = (key(i) | 1) & ~0x10000u;
    keys.high[i / kHashLanes][i % kHashLanes] = key(i + kHashRows * kHashLanes) | 0x10000u;
  }
  return keys;
}
alignas(64) static constexpr HashKeys kHashKeys = make_hash_keys();

/// What block `index` of a row is multiplied by; odd, so that no change within a block is lost.
static inline uint64_t hash_block_factor(uint64_t index) {
  return hash_permutation((2 * index + 1) * kHashFactor);
}

/// The halves of a word times those of a key, added up mod 2^32.
static inline uint32_t hash_word(uint32_t word, uint32_t key) {
  const auto product = [](uint32_t a, uint32_t b) {
    return static_cast<uint32_t>(static_cast<int16_t>(a) * static_cast<int16_t>(b));
  };
  return product(word, key) + product(word >> 16, key >> 16);
}

/// From sums mod 2^32. A block of zeros has a hash too.
static inline uint64_t hash_of_sums(uint32_t low, uint32_t high) {
  return uint64_t{high} << 32 | (low + 1);
}

/// Two sums of products mod 2^32, which any order gives.
static inline uint64_t hash_whole_block(const float* logits) {
  uint32_t low = 0, high = 0;
  for (uint32_t i = 0; i < kHeadBlock; ++i) {
    const auto word = std::bit_cast<uint32_t>(logits[i]);
    const uint32_t row = i / kHashLanes, lane = i % kHashLanes;
    low += hash_word(word, kHashKeys.low[row % kHashRows][lane]);
    high += hash_word(word, kHashKeys.high[row / kHashRows][lane]);
  }
  return hash_of_sums(low, high);
}

/// Hashes the bits of `count` logits, at most kHeadBlock; what is missing counts as words of zeros.
static inline uint64_t hash_logits(const float* logits, int64_t count) {
  if (count == kHeadBlock) return hash_whole_block(logits);
  alignas(64) float filled[kHeadBlock];
  std::memcpy(filled, logits, static_cast<size_t>(count) * sizeof(float));
  std::memset(filled + count, 0, static_cast<size_t>(kHeadBlock - count) * sizeof(float));
  return hash_whole_block(filled);
}

}  // namespace vitrine::kernels
