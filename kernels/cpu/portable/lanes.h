// SPDX-License-Identifier: Apache-2.0
// Sixteen floats, and sixteen integers or pairs of them, for templates that take an instruction
// set's vectors.
#pragma once

#include "math.h"

namespace vitrine::kernels::portable {
namespace {

struct IntegerLanes {
  static constexpr int kLanes = 16;
  struct Lanes {
    float lane[kLanes];
  };
  struct Integers {
    int32_t lane[kLanes];
  };
  template <class Vector, class Make>
  static Vector make(const Make& make_lane) {
    Vector v;
    for (int i = 0; i < kLanes; ++i) v.lane[i] = make_lane(i);
    return v;
  }
  static Lanes load(const float* x) {
    return make<Lanes>([&](int i) { return x[i]; });
  }
  static void store(float* x, const Lanes& v) { __builtin_memcpy(x, v.lane, sizeof(v.lane)); }
  static Lanes set(float x) {
    return make<Lanes>([&](int) { return x; });
  }
  static Lanes add(const Lanes& a, const Lanes& b) {
    return make<Lanes>([&](int i) { return a.lane[i] + b.lane[i]; });
  }
  static Lanes sub(const Lanes& a, const Lanes& b) {
    return make<Lanes>([&](int i) { return a.lane[i] - b.lane[i]; });
  }
  static Lanes mul(const Lanes& a, const Lanes& b) {
    return make<Lanes>([&](int i) { return a.lane[i] * b.lane[i]; });
  }
  static Lanes div(const Lanes& a, const Lanes& b) {
    return make<Lanes>([&](int i) { return a.lane[i] / b.lane[i]; });
  }
  static Lanes fma(const Lanes& a, const Lanes& b, const Lanes& c) {
    return make<Lanes>([&](int i) { return std::fma(a.lane[i], b.lane[i], c.lane[i]); });
  }
  /// b where a lane of either is NaN.
  static Lanes max(const Lanes& a, const Lanes& b) {
    return make<Lanes>([&](int i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
  }
  static Lanes exp(const Lanes& x) {
    return make<Lanes>([&](int i) { return exp_float(x.lane[i]); });
  }
  static Integers load_integers(const int32_t* x) {
    return make<Integers>([&](int i) { return x[i]; });
  }
  static void store_integers(int32_t* x, const Integers& v) {
    __builtin_memcpy(x, v.lane, sizeof(v.lane));
  }
  static Integers set_integers(int32_t x) {
    return make<Integers>([&](int) { return x; });
  }
  static Integers bit_and(const Integers& a, const Integers& b) {
    return make<Integers>([&](int i) { return a.lane[i] & b.lane[i]; });
  }
  /// 0 for what is no number that fits 16 bits.
  static Integers round(const Lanes& x) {
    return make<Integers>([&](int i) {
      const bool fits = std::fabs(x.lane[i]) < 0x1p15f;
      return fits ? static_cast<int32_t>((x.lane[i] + kRoundMagic) - kRoundMagic) : 0;
    });
  }
  static Lanes widen(const Integers& x) {
    return make<Lanes>([&](int i) { return static_cast<float>(x.lane[i]); });
  }
  static Integers dot(const Integers& sum, const Integers& a, const Integers& b) {
    const auto low = [](int32_t word) { return static_cast<int16_t>(word); };
    const auto high = [](int32_t word) { return word >> 16; };
    return make<Integers>([&](int i) {
      return sum.lane[i] + low(a.lane[i]) * low(b.lane[i]) + high(a.lane[i]) * high(b.lane[i]);
    });
  }
  static Integers pair(const Integers& first, const Integers& second) {
    return make<Integers>([&](int i) { return first.lane[i] | second.lane[i] << 16; });
  }
  /// 16 words of two int16 each.
  static Integers load_words(const int16_t* x) {
    Integers v;
    __builtin_memcpy(v.lane, x, sizeof(v.lane));
    return v;
  }
  /// Loads numbers of int8 and widens them.
  static Integers load_words(const int8_t* x) {
    return make<Integers>(
        [&](int i) { return static_cast<uint16_t>(int16_t{x[2 * i]}) | x[2 * i + 1] * 65536; });
  }
  /// Integers that fit 16 bits, two a word.
  static void store_narrow(int32_t* x, const Integers& v) {
    int16_t numbers[kLanes];
    for (int i = 0; i < kLanes; ++i) numbers[i] = static_cast<int16_t>(v.lane[i]);
    __builtin_memcpy(x, numbers, sizeof(numbers));
  }
  /// Lanes of `v` where a bit is set, else of `other`.
  static Lanes select(uint32_t bits, const Lanes& v, const Lanes& other) {
    return make<Lanes>([&](int i) { return (bits >> i & 1) != 0 ? v.lane[i] : other.lane[i]; });
  }
  static float sum(const Lanes& v) {
    portable::Lanes lanes;
    for (int i = 0; i < kLanes; ++i) lanes.lane[i] = v.lane[i];
    return lanes.sum();
  }
  static float largest(const Lanes& v) {
    MaxLanes lanes;
    for (int i = 0; i < kLanes; ++i) lanes.take(i, v.lane[i]);
    return lanes.max();
  }
};

}  // namespace
}  // namespace vitrine::kernels::portable
