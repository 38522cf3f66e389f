// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the head's statistics (docs/numerics.md, "Output head").
#pragma once

#include "kernels/cuda/device_math.h"

namespace vitrine::kernels::cuda {

/// The head's exponential, of x <= 0 or NaN.
VITRINE_DEVICE float exp_statistics(float x) {
  if (x < kExpStatisticsLow) return 0.0f;
  static constexpr Exp2Words words = make_exp2_words();
  const float rounded = fma_rn(x, kLog2E, kRoundMagic8);
  const float f = fma_rn(x, kLog2E, -(rounded - kRoundMagic8));
  const uint32_t bits = float_bits(rounded);
  const float power = bits_float(words.at[bits % 8] + (bits << 20));
  const float q = fma_rn(fma_rn(kExp2D3, f, kExp2D2), f, kExp2D1);
  return fma_rn(q * f, power, power);
}

// The digest: kernels/cpu/logits_hash.h, whose constants these are.
inline constexpr uint32_t kHashFactor = 0x9E3779B1;
inline constexpr uint32_t kHashOffset = 0x85EBCA6B;

VITRINE_DEVICE uint32_t hash_key(uint32_t n) {
  const uint32_t t = n * kHashFactor + kHashOffset;
  return t * (2 * t + 1);
}
/// The keys of words i, i + 128, … of a block, and of the words of row i / 128 that share a lane.
VITRINE_DEVICE uint32_t low_hash_key(uint32_t i) { return (hash_key(i % 128) | 1) & ~0x10000u; }
VITRINE_DEVICE uint32_t high_hash_key(uint32_t i) {
  return hash_key(128 + i / 128 * 16 + i % 16) | 0x10000u;
}
/// The halves of a word times those of a key, signed, added up mod 2^32.
VITRINE_DEVICE uint32_t hash_word(uint32_t word, uint32_t key) {
  const int32_t low = static_cast<int16_t>(word) * static_cast<int16_t>(key);
  const int32_t high = static_cast<int16_t>(word >> 16) * static_cast<int16_t>(key >> 16);
  return static_cast<uint32_t>(low) + static_cast<uint32_t>(high);
}
/// What the hash of block b of a row is multiplied by.
VITRINE_DEVICE uint64_t hash_block_factor(uint64_t b) {
  const uint64_t t = (2 * b + 1) * kHashFactor;
  return t * (2 * t + 1);
}

/// max, sum of exp(logit - max), sum of exp(logit - max) * (logit - max), in double.
struct RunningSums {
  double max, sum, sum_logit;
};
/// The sums of both. Where one is of nothing (max -inf), the other's.
VITRINE_DEVICE RunningSums merge_sums(RunningSums a, RunningSums b) {
  const double nothing = -static_cast<double>(bits_float(0x7f800000u));
  if (b.max == nothing) return a;
  if (a.max == nothing) return b;
  const bool b_leads = b.max > a.max;
  const RunningSums high = b_leads ? b : a, low = b_leads ? a : b;
  const double shift = low.max - high.max;
  const double factor = exp_double(shift);
  return {high.max, high.sum + factor * low.sum,
          high.sum_logit + factor * (low.sum_logit + low.sum * shift)};
}

}  // namespace vitrine::kernels::cuda
