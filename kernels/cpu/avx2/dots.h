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
  static constexpr bool kSignedProducts = Format::kChain == 1;

  template <class Format, bool kSigned = kSignedProducts<Format>>
  struct Weights {
    Step steps[kSteps];
    // What pairs of 16-bit sums are multiplied with: the scale of their part of the group.
    __m256i factors[2];
  };
  /// The unsigned factor is |value|, 0 … 128; the activation takes the value's sign.
  template <class Format>
  struct Weights<Format, true> {
    Step values[kSteps];
    Step magnitudes[kSteps];
  };

  template <class Format>
  VITRINE_INLINE Weights<Format> unpack(const uint8_t* unit, int half, const Group& group) {
    Weights<Format> weights;
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s) {
      const Step step = Format::step(unit, half, s);
      if constexpr (kSignedProducts<Format>) {
        const __m256i flip = _mm256_set1_epi8(-128);
        const Step value = {_mm256_xor_si256(step.low, flip), _mm256_xor_si256(step.high, flip)};
        weights.values[s] = value;
        weights.magnitudes[s] = {_mm256_abs_epi8(value.low), _mm256_abs_epi8(value.high)};
      } else {
        weights.steps[s] = step;
      }
    }
    if constexpr (Format::kTwoParts) {
      weights.factors[0] = words_of(group.part_scale[0]);
      weights.factors[1] = words_of(group.part_scale[1]);
    } else if constexpr (!kSignedProducts<Format>) {
      weights.factors[0] = _mm256_set1_epi16(1);
    }
    return weights;
  }

  /// isum and the products with 32 values of a token.
  template <class Format>
  VITRINE_INLINE __m256i add(const Weights<Format>& weights, const __m256i* x, __m256i isum) {
    __m256i chain = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s) {
      const __m256i first = x[2 * s];
      const __m256i second = x[2 * s + 1];
      if constexpr (kSignedProducts<Format>) {
        const Step& value = weights.values[s];
        const Step& magnitude = weights.magnitudes[s];
        const __m256i ones = _mm256_set1_epi16(1);
        const __m256i a = _mm256_sign_epi8(first, value.low);
        const __m256i b = _mm256_sign_epi8(second, value.high);
        const __m256i low = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude.low, a), ones);
        const __m256i high = _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude.high, b), ones);
        isum = _mm256_add_epi32(isum, _mm256_add_epi32(low, high));
      } else {
        const __m256i low = _mm256_maddubs_epi16(weights.steps[s].low, first);
        const __m256i high = _mm256_maddubs_epi16(weights.steps[s].high, second);
        const bool begins = 2 * s % Format::kChain == 0;
        chain = begins ? low : _mm256_add_epi16(chain, low);
        keep(chain);
        chain = _mm256_add_epi16(chain, high);
        keep(chain);
        if ((2 * s + 2) % Format::kChain == 0) {
          const __m256i factor = weights.factors[Format::kTwoParts ? s / 2 : 0];
          isum = _mm256_add_epi32(isum, _mm256_madd_epi16(chain, factor));
        }
      }
    }
    return isum;
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

  template <class Format>
  struct Weights {
    Step steps[kSteps];
    __m256i part_scale[2];
  };

  template <class Format>
  VITRINE_INLINE Weights<Format> unpack(const uint8_t* unit, int half, const Group& group) {
    Weights<Format> weights;
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s) weights.steps[s] = Format::step(unit, half, s);
    if constexpr (Format::kTwoParts) {
      weights.part_scale[0] = group.part_scale[0];
      weights.part_scale[1] = group.part_scale[1];
    }
    return weights;
  }

  template <class Format>
  VITRINE_INLINE __m256i add(const Weights<Format>& weights, const __m256i* x, __m256i isum) {
    // Two chains of sums: one would leave the multipliers waiting, and halves of a group may have
    // scales of their own.
    __m256i first = Format::kTwoParts ? _mm256_setzero_si256() : isum;
    __m256i second = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int s = 0; s < kSteps; ++s) {
      __m256i& sum = s < kSteps / 2 ? first : second;
      sum = _mm256_dpbusd_avx_epi32(sum, weights.steps[s].low, x[2 * s]);
      sum = _mm256_dpbusd_avx_epi32(sum, weights.steps[s].high, x[2 * s + 1]);
    }
    if constexpr (Format::kTwoParts) {
      first = _mm256_add_epi32(isum, _mm256_mullo_epi32(first, weights.part_scale[0]));
      second = _mm256_mullo_epi32(second, weights.part_scale[1]);
    }
    return _mm256_add_epi32(first, second);
  }
};
#endif

}  // namespace
}  // namespace vitrine::kernels::avx2
