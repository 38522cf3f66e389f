// The digest of a row of logits, word for word as docs/numerics.md defines it.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace vitrine::testing_support {

inline uint64_t logits_digest(std::span<const float> logits) {
  constexpr size_t kBlock = 1024;
  uint64_t digest = 0;
  for (size_t begin = 0, block = 0; begin < logits.size(); begin += kBlock, ++block) {
    const auto word = [&](size_t i) {
      const uint32_t t = static_cast<uint32_t>(i) * 0x9E3779B1u + 0x85EBCA6Bu;
      const uint32_t bits =
          begin + i < logits.size() ? std::bit_cast<uint32_t>(logits[begin + i]) : 0;
      return bits + t * (2 * t + 1);
    };
    uint64_t hash = 0;
    for (size_t j = 0; j < kBlock / 2; ++j) hash += uint64_t{word(j)} * word(j + kBlock / 2);
    const uint64_t t = (2 * block + 1) * 0x9E3779B1u;
    digest += hash * (t * (2 * t + 1));
  }
  return digest;
}

}  // namespace vitrine::testing_support
