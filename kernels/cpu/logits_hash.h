// A 64-bit hash of a row of logits, block by block. Internal linkage: each file has its own copy,
// in its own instruction set.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>

#include "cpu_kernels.h"

namespace vitrine::kernels {

inline constexpr size_t kHashPairs = kHeadBlock / 2;
inline constexpr uint64_t kHashFactor = 0x9E3779B1;  // odd, 2^32 / golden ratio
inline constexpr uint64_t kHashOffset = 0x85EBCA6B;

/// A permutation of the integers of that width (as in RC6): other t, other keys.
template <typename Integer>
static constexpr Integer hash_permutation(Integer t) {
  return t * (2 * t + 1);
}

/// What is added to each word of a block.
static constexpr std::array<uint32_t, kHeadBlock> make_hash_keys() {
  std::array<uint32_t, kHeadBlock> keys{};
  for (uint32_t i = 0; i < kHeadBlock; ++i) {
    keys[i] = hash_permutation(
        static_cast<uint32_t>(i * static_cast<uint32_t>(kHashFactor) + kHashOffset));
  }
  return keys;
}
alignas(64) static constexpr std::array<uint32_t, kHeadBlock> kHashKeys = make_hash_keys();

/// What block `index` of a row is multiplied by; odd, so that no change within a block is lost.
static inline uint64_t hash_block_factor(uint64_t index) {
  return hash_permutation((2 * index + 1) * kHashFactor);
}

/// NH (Black et al., UMAC 1999): the sum of products of pairs of words, a word and its key added
/// mod 2^32, products mod 2^64. Integers, so any order of summing gives the same.
static inline uint64_t hash_whole_block(const float* logits) {
  uint64_t sum = 0;
  for (size_t j = 0; j < kHashPairs; ++j) {
    const uint32_t first = std::bit_cast<uint32_t>(logits[j]) + kHashKeys[j];
    const uint32_t second =
        std::bit_cast<uint32_t>(logits[j + kHashPairs]) + kHashKeys[j + kHashPairs];
    sum += uint64_t{first} * second;
  }
  return sum;
}

/// Of the bits of `count` logits, at most kHeadBlock; what is missing counts as words of zeros.
static inline uint64_t hash_logits(const float* logits, int64_t count) {
  if (count == kHeadBlock) return hash_whole_block(logits);
  alignas(64) float filled[kHeadBlock];
  std::memcpy(filled, logits, static_cast<size_t>(count) * sizeof(float));
  std::memset(filled + count, 0, static_cast<size_t>(kHeadBlock - count) * sizeof(float));
  return hash_whole_block(filled);
}

}  // namespace vitrine::kernels
