// SPDX-License-Identifier: Apache-2.0
// The digest of a row of logits, word for word as docs/numerics.md defines it.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>

namespace vitrine::testing_support {

inline uint64_t logits_digest(std::span<const float> logits) {
  constexpr size_t kBlock = 1024;
  uint64_t digest = 0;
  for (size_t begin = 0, block = 0; begin < logits.size(); begin += kBlock, ++block) {
    const auto key = [](size_t n) {
      const uint32_t t = static_cast<uint32_t>(n) * 0x9E3779B1u + 0x85EBCA6Bu;
      return t * (2 * t + 1);
    };
    const auto times = [](uint32_t word, uint32_t by) {
      const int64_t lower = int64_t{static_cast<int16_t>(word)} * static_cast<int16_t>(by);
      const int64_t upper =
          int64_t{static_cast<int16_t>(word >> 16)} * static_cast<int16_t>(by >> 16);
      return lower + upper;
    };
    int64_t low = 1, high = 0;
    for (size_t i = 0; i < std::min(kBlock, logits.size() - begin); ++i) {
      const auto bits = std::bit_cast<uint32_t>(logits[begin + i]);
      low += times(bits, (key(i % 128) | 1) & 0xfffeffff);
      high += times(bits, key(128 + i / 128 * 16 + i % 16) | 0x10000);
    }
    const uint64_t hash = static_cast<uint64_t>(high) << 32 | static_cast<uint32_t>(low);
    const uint64_t t = (2 * block + 1) * 0x9E3779B1u;
    digest += hash * (t * (2 * t + 1));
  }
  return digest;
}

}  // namespace vitrine::testing_support
