// SPDX-License-Identifier: Apache-2.0
// Packed numbers in registers: what fragments are made from.
#pragma once

#include "kernels/cuda/device.h"

/// Before a loop over registers.
#if defined(__CUDACC__)
#define VITRINE_PRAGMA(words) _Pragma(#words)
#define VITRINE_UNROLL _Pragma("unroll")
#define VITRINE_UNROLL_BY(count) VITRINE_PRAGMA(unroll count)
#else
#define VITRINE_UNROLL
#define VITRINE_UNROLL_BY(count)
#endif

namespace vitrine::kernels::cuda {

/// Byte i of the result is byte (selector >> 4i) & 7 of the eight bytes high:low; with the
/// selector's bit 3 set, that byte's sign bit eight times.
VITRINE_DEVICE uint32_t permute_bytes(uint32_t low, uint32_t high, uint32_t selector) {
#if defined(__CUDACC__)
  uint32_t result;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(result) : "r"(low), "r"(high), "r"(selector));
  return result;
#else
  const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t choice = selector >> (4 * i) & 15;
    uint32_t byte = static_cast<uint32_t>(bytes >> (8 * (choice & 7))) & 255;
    if (choice & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
#endif
}

/// a - b of two bf16 each, rounded to nearest even.
VITRINE_DEVICE uint32_t subtract_bf16_pairs(uint32_t a, uint32_t b) {
#if defined(__CUDACC__)
  uint32_t result;
  asm("{.reg .b32 minus_one; mov.b32 minus_one, 0xbf80bf80;"
      " fma.rn.bf16x2 %0, %1, minus_one, %2;}"
      : "=r"(result)
      : "r"(b), "r"(a));
  return result;
#else
  uint32_t result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const float difference = widen_bf16(static_cast<uint16_t>(a >> shift)) -
                             widen_bf16(static_cast<uint16_t>(b >> shift));
    result |= static_cast<uint32_t>(narrow_bf16(difference)) << shift;
  }
  return result;
#endif
}

/// a * b of two bf16 each, rounded to nearest even.
VITRINE_DEVICE uint32_t multiply_bf16_pairs(uint32_t a, uint32_t b) {
#if defined(__CUDACC__)
  uint32_t result;
  asm("{.reg .b32 minus_zero; mov.b32 minus_zero, 0x80008000;"
      " fma.rn.bf16x2 %0, %1, %2, minus_zero;}"
      : "=r"(result)
      : "r"(a), "r"(b));
  return result;
#else
  uint32_t result = 0;
  for (int shift = 0; shift < 32; shift += 16) {
    const float product = widen_bf16(static_cast<uint16_t>(a >> shift)) *
                          widen_bf16(static_cast<uint16_t>(b >> shift));
    result |= static_cast<uint32_t>(narrow_bf16(product)) << shift;
  }
  return result;
#endif
}

/// 4 bytes at a 4-byte aligned address.
VITRINE_DEVICE uint32_t load4(const void* from) {
#if defined(__CUDACC__)
  return *static_cast<const uint32_t*>(from);
#else
  uint32_t word;
  std::memcpy(&word, from, sizeof(word));
  return word;
#endif
}
struct alignas(8) Words2 {
  uint32_t x, y;
};
/// 8 bytes at an 8-byte aligned address.
VITRINE_DEVICE Words2 load8(const void* from) {
#if defined(__CUDACC__)
  return *static_cast<const Words2*>(from);
#else
  Words2 words;
  std::memcpy(&words, from, sizeof(words));
  return words;
#endif
}

// ---- four numbers as bytes

inline constexpr uint32_t kLowNibbles = 0x0f0f0f0fu;

/// Four E2M1 codes (nibbles 0 … 3 of `codes`) as bytes 12 + 2 * value, 0 … 24.
VITRINE_DEVICE uint32_t mxfp4_bytes(uint32_t codes) {
  const uint32_t magnitudes = codes & 0x7777u;
  const uint32_t positive = permute_bytes(0x0f0e0d0cu, 0x18141210u, magnitudes);
  const uint32_t negative = permute_bytes(0x090a0b0cu, 0x00040608u, magnitudes);
  const uint32_t sign = permute_bytes(0x80808080u, 0x80808080u, codes);  // 0x80 or 0xff
  return positive ^ ((positive ^ negative) & sign);                      // bit 7 of both is 0
}

// ---- bytes as bf16: 0x4300 is 128, and its last mantissa bit counts ones

inline constexpr uint32_t k128 = 0x43004300u;

/// 128 + u of bytes (2 * pair, 2 * pair + 1) of `bytes`, 0 <= u < 128.
VITRINE_DEVICE uint32_t bf16_above_128(uint32_t bytes, int pair) {
  return permute_bytes(bytes, k128, pair == 0 ? 0x5150u : 0x5352u);
}
/// The signed bytes themselves: the sign bit lands on the exponent's last bit, 128 or 256.
VITRINE_DEVICE uint32_t bf16_of_signed(uint32_t bytes, int pair) {
  const uint32_t both = bf16_above_128(bytes, pair);
  return subtract_bf16_pairs(both & 0xff7fff7fu, both & 0xff80ff80u);
}
/// Two E4M3 floats, exact: their exponents and mantissas stand where bf16 has its own, 2^120 too
/// small (subnormal ones too).
VITRINE_DEVICE uint32_t bf16_of_e4m3(uint32_t bytes, int pair) {
  const uint32_t high = permute_bytes(bytes, 0, pair == 0 ? 0x1404u : 0x3424u);
  const uint32_t small = (high & 0x80008000u) | (high & 0x7f007f00u) >> 4;
  return multiply_bf16_pairs(small, 0x7b807b80u);
}
/// An integer of at most 8 bits and a sign as a pair of bf16, exact.
VITRINE_DEVICE uint32_t bf16_pair(int32_t integer) {
  const uint32_t bits = narrow_bf16(static_cast<float>(integer));
  return bits | bits << 16;
}

}  // namespace vitrine::kernels::cuda
