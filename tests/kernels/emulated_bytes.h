// SPDX-License-Identifier: Apache-2.0
// More of emulated_x86.h, which includes this: bytes and words, and tables of them, that blocks are
// decoded with.
#pragma once
#pragma GCC system_header

namespace vitrine::kernels::emulated {

/// Words of two tables by the low six bits of an index.
VITRINE_EMULATED __m512i pick_words(const __m512i& a, const __m512i& order, const __m512i& b) {
  const auto x = Lanes<uint16_t>::of(a);
  const auto y = Lanes<uint16_t>::of(b);
  return map<uint16_t>(order, [&](uint16_t index) {
    return (index & 32) != 0 ? y.lane[index & 31] : x.lane[index & 31];
  });
}
/// The bit of `table` that the bits of a, b and c name, the one of a highest.
VITRINE_EMULATED __m512i by_truth_table(const __m512i& a, const __m512i& b, const __m512i& c,
                                        int table) {
  const auto x = Lanes<uint32_t>::of(a);
  const auto y = Lanes<uint32_t>::of(b);
  const auto z = Lanes<uint32_t>::of(c);
  return make<uint32_t>([&](int i) {
    uint32_t out = 0;
    for (int bit = 0; bit < 32; ++bit) {
      const uint32_t row =
          (x.lane[i] >> bit & 1) << 2 | (y.lane[i] >> bit & 1) << 1 | (z.lane[i] >> bit & 1);
      out |= (static_cast<uint32_t>(table) >> row & 1) << bit;
    }
    return out;
  });
}
VITRINE_EMULATED __m512i gather_long(const __m256i& at, const void* base, int scale) {
  int32_t index[8];
  std::memcpy(index, &at, sizeof(index));
  return make<int64_t>([&](int i) {
    return load<int64_t>(static_cast<const char*>(base) + int64_t{index[i]} * scale);
  });
}
VITRINE_EMULATED __m512i with_half(const __m512i& a, const __m256i& half, int n) {
  __m512i out = a;
  std::memcpy(reinterpret_cast<char*>(&out) + 32 * n, &half, sizeof(half));
  return out;
}
VITRINE_EMULATED __m256i half_of(const __m512i& a, int n) {
  return load<__m256i>(reinterpret_cast<const char*>(&a) + 32 * n);
}

}  // namespace vitrine::kernels::emulated

#undef _mm512_ternarylogic_epi32
#undef _mm512_i32gather_epi64
#undef _mm512_inserti64x4
#undef _mm512_extracti64x4_epi64
#define _mm512_set1_epi16(x) VE_I(VE::same<int16_t>(static_cast<int16_t>(x)))
#define _mm512_add_epi8(a, b) VE_ZIP(uint8_t, VE_I, a, b, x + y)
#define _mm512_mask_add_epi8(s, k, a, b) VE_I(VE::choose<uint8_t>(k, _mm512_add_epi8(a, b), s))
#define _mm512_mask_sub_epi8(s, k, a, b) VE_I(VE::choose<uint8_t>(k, _mm512_sub_epi8(a, b), s))
#define _mm512_maskz_mov_epi8(k, a) VE_I(VE::choose<uint8_t>(k, a, _mm512_setzero_si512()))
#define _mm512_cmpgt_epu8_mask(a, b) VE::mask_of<uint8_t>(a, b, std::greater<>())
#define _mm512_test_epi16_mask(a, b) \
  static_cast<__mmask32>(            \
      VE::mask_of<uint16_t>(a, b, [](uint16_t x, uint16_t y) { return (x & y) != 0; }))
#define _mm512_test_epi32_mask(a, b) \
  VE_M16(VE::mask_of<uint32_t>(a, b, [](uint32_t x, uint32_t y) { return (x & y) != 0; }))
#define _mm512_srl_epi32(a, n) VE::shift<uint32_t>(a, 0, VE::low_word(n))
#define _mm512_sll_epi32(a, n) VE::shift<uint32_t>(a, VE::low_word(n), 0)
#define _mm512_castsi512_si256(a) VE::half_of(a, 0)
#define _mm512_extracti64x4_epi64(a, n) VE::half_of(a, n)
#define _mm512_castsi256_si512(a) VE::with_half(_mm512_setzero_si512(), a, 0)
#define _mm512_inserti64x4(a, b, n) VE::with_half(a, b, n)
#define _mm512_permutex2var_epi16(a, order, b) VE::pick_words(a, order, b)
#define _mm512_ternarylogic_epi32(a, b, c, table) VE::by_truth_table(a, b, c, table)
#define _mm512_i32gather_epi64(at, base, scale) VE::gather_long(at, base, scale)
