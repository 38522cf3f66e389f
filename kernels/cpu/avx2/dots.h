// SPDX-License-Identifier: Apache-2.0
// How the AVX2 products make dots of four bytes: with vpmaddubsw, or with AVX-VNNI. Each Dot has
// the numbers of eight rows and 32 columns unpacked once (Weights), for all tokens that follow; a
// token's 32 values come as words of four, each in all lanes. Every sum of products is exact,
// whatever the instructions.
#pragma once

#include "formats.h"

namespace vitrine::kernels::avx2 {
namespace {

VITRINE_INLINE __m256i broadcast_word(const void* four) {
  int32_t word;
  __builtin_memcpy(&word, four, sizeof(word));
  return _mm256_set1_epi32(word);
}

constexpr int kSteps = kUnit / 8;
constexpr int kWords = kUnit / 4;

/// Dots in 16-bit pieces (vpmaddubsw), widened before they could overflow.
struct MaddubsDot {
  template <class Format>
  static constexpr bool kSignedProducts = Format::kChain == 0;
  /// How many tokens of a block meet a step's weights before the next step does. Sums that are
  /// widened in each step leave room in the registers for four.
  template <class Format>
  static constexpr int32_t kTokensAtOnce = Format::kChain <= 1 ? 4 : 1;

  /// Eight columns.
  template <class Format, bool kSigned = kSignedProducts<Format>>
  struct StepWeights {
    Step step;
  };
  /// The unsigned factor is |value|, 0 … 128; the activation takes the value's sign.
  template <class Format>
  struct StepWeights<Format, true> {
    Step value, magnitude;
  };

  /// What pairs of 16-bit sums are multiplied with: the scale of their part of the group.
  struct Factors {
    __m256i of_part[2];
  };
  struct Sums {
    __m256i whole;
    __m256i chain;  // in 16 bits
  };

  template <class Format>
  VITRINE_INLINE StepWeights<Format> unpack_step(const uint8_t* unit, int64_t g, int half, int s) {
    const Step step = Format::step(unit, g, half, s);
    if constexpr (kSignedProducts<Format>) {
      const __m256i flip = _mm256_set1_epi8(-128);
      const Step value = {_mm256_xor_si256(step.low, flip), _mm256_xor_si256(step.high, flip)};
      return {value, {_mm256_abs_epi8(value.low), _mm256_abs_epi8(value.high)}};
    } else {
      return {step};
    }
  }

  template <class Format>
  VITRINE_INLINE Factors factors_of(const Group& group) {
    Factors factors;
    if constexpr (Format::kTwoParts) {
      factors.of_part[0] = words_of(group.part_scale[0]);
      factors.of_part[1] = words_of(group.part_scale[1]);
    } else {
      factors.of_part[0] = _mm256_set1_epi16(1);
    }
    return factors;
  }

  /// The products with the values of step s of a token, the first four and the last.
  template <class Format>
  VITRINE_INLINE void add_step(Sums& sums, const StepWeights<Format>& weights,
                               const Factors& factors, int s, __m256i first, __m256i second) {
    if constexpr (kSignedProducts<Format>) {
      const __m256i factor = factors.of_part[Format::kTwoParts ? s / 2 : 0];
      const __m256i a = _mm256_sign_epi8(first, weights.value.low);
      const __m256i b = _mm256_sign_epi8(second, weights.value.high);
      const __m256i low = _mm256_madd_epi16(_mm256_maddubs_epi16(weights.magnitude.low, a), factor);
      const __m256i high =
          _mm256_madd_epi16(_mm256_maddubs_epi16(weights.magnitude.high, b), factor);
      sums.whole = _mm256_add_epi32(sums.whole, _mm256_add_epi32(low, high));
      keep(sums.whole);
    } else if constexpr (Format::kChain == 1) {
      const __m256i factor = factors.of_part[Format::kTwoParts ? s / 2 : 0];
      const __m256i low = _mm256_madd_epi16(_mm256_maddubs_epi16(weights.step.low, first), factor);
      const __m256i high =
          _mm256_madd_epi16(_mm256_maddubs_epi16(weights.step.high, second), factor);
      sums.whole = _mm256_add_epi32(sums.whole, _mm256_add_epi32(low, high));
      keep(sums.whole);
    } else {
      const __m256i low = _mm256_maddubs_epi16(weights.step.low, first);
      const __m256i high = _mm256_maddubs_epi16(weights.step.high, second);
      const bool begins = 2 * s % Format::kChain == 0;
      sums.chain = begins ? low : _mm256_add_epi16(sums.chain, low);
      keep(sums.chain);
      sums.chain = _mm256_add_epi16(sums.chain, high);
      keep(sums.chain);
      if ((2 * s + 2) % Format::kChain == 0) {
        const __m256i factor = factors.of_part[Format::kTwoParts ? s / 2 : 0];
        sums.whole = _mm256_add_epi32(sums.whole, _mm256_madd_epi16(sums.chain, factor));
      }
    }
  }

  /// isum and the products with half of a token's 32 values.
  template <class Format, class Weights>
  VITRINE_INLINE __m256i add_half(const Weights& weights, const __m256i* x, int part,
                                  __m256i isum) {
    Sums sums = {isum, _mm256_setzero_si256()};
#pragma GCC unroll 2
    for (int s = 2 * part; s < 2 * part + 2; ++s) {
      add_step<Format>(sums, weights.steps[s], weights.factors, s, x[2 * s], x[2 * s + 1]);
    }
    return sums.whole;
  }

  /// isum and the products with 32 values of a token.
  template <class Format, class Weights>
  VITRINE_INLINE __m256i add(const Weights& weights, const __m256i* x, __m256i isum) {
    Sums sums = {isum, _mm256_setzero_si256()};
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s) {
      add_step<Format>(sums, weights.steps[s], weights.factors, s, x[2 * s], x[2 * s + 1]);
    }
    return sums.whole;
  }

 private:
  /// The low word of each lane in both of its words.
  VITRINE_INLINE __m256i words_of(__m256i lanes) {
    return _mm256_blend_epi16(lanes, _mm256_slli_epi32(lanes, 16), 0xaa);
  }
  /// Additions stay in their order: GCC would make a tree of them, for which it lacks registers.
  VITRINE_INLINE void keep(__m256i& v) { __asm__("" : "+x"(v)); }
};

#if defined(__AVXVNNI__)
/// Dots with AVX-VNNI: four products are added in 32 bits.
struct VnniDot {
  template <class Format>
  static constexpr bool kSignedProducts = false;
  /// One token's chain of sums would leave the multipliers waiting.
  template <class Format>
  static constexpr int32_t kTokensAtOnce = 4;

  template <class Format>
  struct StepWeights {
    Step step;
  };
  /// Factors of the group's halves, where these have scales of their own.
  struct Factors {
    __m256i of_part[2];
  };
  struct Sums {
    __m256i whole;
    __m256i part;  // of a half with a scale of its own
  };

  template <class Format>
  VITRINE_INLINE StepWeights<Format> unpack_step(const uint8_t* unit, int64_t g, int half, int s) {
    return {Format::step(unit, g, half, s)};
  }

  template <class Format>
  VITRINE_INLINE Factors factors_of(const Group& group) {
    Factors factors;
    if constexpr (Format::kTwoParts) factors = {{group.part_scale[0], group.part_scale[1]}};
    return factors;
  }

  /// The products with the values of step s of a token, the first four and the last.
  template <class Format>
  VITRINE_INLINE void add_step(Sums& sums, const StepWeights<Format>& weights,
                               const Factors& factors, int s, __m256i first, __m256i second) {
    constexpr int kPartSteps = kSteps / 2;
    __m256i& sum = Format::kTwoParts ? sums.part : sums.whole;
    if (Format::kTwoParts && s % kPartSteps == 0) sum = _mm256_setzero_si256();
    sum = _mm256_dpbusd_avx_epi32(sum, weights.step.low, first);
    sum = _mm256_dpbusd_avx_epi32(sum, weights.step.high, second);
    if (Format::kTwoParts && s % kPartSteps == kPartSteps - 1) {
      const __m256i scaled = _mm256_mullo_epi32(sum, factors.of_part[s / kPartSteps]);
      sums.whole = _mm256_add_epi32(sums.whole, scaled);
    }
  }

  /// isum and the products with half of a token's 32 values.
  template <class Format, class Weights>
  VITRINE_INLINE __m256i add_half(const Weights& weights, const __m256i* x, int part,
                                  __m256i isum) {
#pragma GCC unroll 2
    for (int s = 2 * part; s < 2 * part + 2; ++s) {
      isum = _mm256_dpbusd_avx_epi32(isum, weights.steps[s].step.low, x[2 * s]);
      isum = _mm256_dpbusd_avx_epi32(isum, weights.steps[s].step.high, x[2 * s + 1]);
    }
    return isum;
  }

  template <class Format, class Weights>
  VITRINE_INLINE __m256i add(const Weights& weights, const __m256i* x, __m256i isum) {
    // Two chains of sums: one would leave the multipliers waiting, and halves of a group may have
    // scales of their own.
    __m256i first = Format::kTwoParts ? _mm256_setzero_si256() : isum;
    __m256i second = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s) {
      __m256i& sum = s < kSteps / 2 ? first : second;
      sum = _mm256_dpbusd_avx_epi32(sum, weights.steps[s].step.low, x[2 * s]);
      sum = _mm256_dpbusd_avx_epi32(sum, weights.steps[s].step.high, x[2 * s + 1]);
    }
    if constexpr (Format::kTwoParts) {
      first = _mm256_add_epi32(isum, _mm256_mullo_epi32(first, weights.factors.of_part[0]));
      second = _mm256_mullo_epi32(second, weights.factors.of_part[1]);
    }
    return _mm256_add_epi32(first, second);
  }
};
#endif

/// A unit of half a tile, unpacked for all tokens of a block.
template <class Dot, class Format>
struct UnitWeights {
  typename Dot::template StepWeights<Format> steps[kSteps];
  typename Dot::Factors factors;
};

template <class Dot, class Format>
VITRINE_INLINE UnitWeights<Dot, Format> unpack(const uint8_t* unit, int64_t g, int half,
                                               const Group& group) {
  UnitWeights<Dot, Format> weights;
#pragma GCC unroll 4
  for (int s = 0; s < kSteps; ++s) {
    weights.steps[s] = Dot::template unpack_step<Format>(unit, g, half, s);
  }
  weights.factors = Dot::template factors_of<Format>(group);
  return weights;
}

}  // namespace
}  // namespace vitrine::kernels::avx2
