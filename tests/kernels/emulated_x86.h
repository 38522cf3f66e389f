// SPDX-License-Identifier: Apache-2.0
// AVX-512, AVX-VNNI and AMX in plain C++, so that the kernels written for them are tested on
// machines that lack them. Included in front of each such file (-include), and of cpu_features.cc.
// Only what the kernels use, by Intel's intrinsics guide: a name that is missing does not compile.
#pragma once
#pragma GCC system_header  // it takes names away from the compiler's own headers

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>

namespace vitrine::kernels::emulated {

#define VITRINE_EMULATED [[maybe_unused]] static inline

template <class T>
struct Lanes {
  static constexpr int kCount = 64 / sizeof(T);
  T lane[kCount];
  template <class Vector>
  VITRINE_EMULATED Lanes of(const Vector& v) {
    static_assert(sizeof(v) == sizeof(Lanes));
    return __builtin_bit_cast(Lanes, v);
  }
  operator __m512() const { return __builtin_bit_cast(__m512, *this); }
  operator __m512i() const { return __builtin_bit_cast(__m512i, *this); }
};
template <class T, class Function>  // function: of a lane's number
VITRINE_EMULATED Lanes<T> make(const Function& function) {
  Lanes<T> out;
  for (int i = 0; i < Lanes<T>::kCount; ++i) out.lane[i] = static_cast<T>(function(i));
  return out;
}
template <class T, class Vector, class Function>
VITRINE_EMULATED Lanes<T> map(const Vector& a, const Function& function) {
  const auto x = Lanes<T>::of(a);
  return make<T>([&](int i) { return function(x.lane[i]); });
}
template <class T, class Vector, class Function>
VITRINE_EMULATED Lanes<T> zip(const Vector& a, const Vector& b, const Function& function) {
  const auto x = Lanes<T>::of(a);
  const auto y = Lanes<T>::of(b);
  return make<T>([&](int i) { return function(x.lane[i], y.lane[i]); });
}
template <class T, class Vector, class Function>
VITRINE_EMULATED uint64_t mask_of(const Vector& a, const Vector& b, const Function& function) {
  const auto x = Lanes<T>::of(a);
  const auto y = Lanes<T>::of(b);
  uint64_t mask = 0;
  for (int i = 0; i < Lanes<T>::kCount; ++i) {
    mask |= static_cast<uint64_t>(function(x.lane[i], y.lane[i])) << i;
  }
  return mask;
}
template <class T, class Vector>
VITRINE_EMULATED Lanes<T> choose(uint64_t mask, const Vector& set, const Vector& clear) {
  const auto x = Lanes<T>::of(set);
  const auto y = Lanes<T>::of(clear);
  return make<T>([&](int i) { return (mask >> i & 1) != 0 ? x.lane[i] : y.lane[i]; });
}
template <class T>
VITRINE_EMULATED Lanes<T> same(T value) {
  return make<T>([&](int) { return value; });
}
template <class Vector>
VITRINE_EMULATED Vector load(const void* from) {
  Vector v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}
template <class Vector>
VITRINE_EMULATED void store(void* to, const Vector& v) {
  std::memcpy(to, &v, sizeof(v));
}
/// Lanes that the mask leaves out are not read.
template <class T, class Vector>
VITRINE_EMULATED Lanes<T> load_some(uint64_t mask, const void* from, const Vector& clear) {
  auto out = Lanes<T>::of(clear);
  for (int i = 0; i < Lanes<T>::kCount; ++i) {
    if ((mask >> i & 1) == 0) continue;
    std::memcpy(&out.lane[i], static_cast<const char*>(from) + i * sizeof(T), sizeof(T));
  }
  return out;
}
template <class T, class Vector>
VITRINE_EMULATED void store_some(void* to, uint64_t mask, const Vector& v) {
  const auto x = Lanes<T>::of(v);
  for (int i = 0; i < Lanes<T>::kCount; ++i) {
    if ((mask >> i & 1) == 0) continue;
    std::memcpy(static_cast<char*>(to) + i * sizeof(T), &x.lane[i], sizeof(T));
  }
}
VITRINE_EMULATED __m256i load_shorts(uint16_t mask, const void* from) {
  const Lanes<uint16_t> all = load_some<uint16_t>(mask, from, same(0));
  return load<__m256i>(all.lane);
}
VITRINE_EMULATED __m128i load_bytes(uint16_t mask, const void* from) {
  uint8_t bytes[16] = {};
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) bytes[i] = static_cast<const uint8_t*>(from)[i];
  }
  return load<__m128i>(bytes);
}
template <class To, class From>
VITRINE_EMULATED Lanes<To> widen(const void* from) {
  From x[Lanes<To>::kCount];
  std::memcpy(x, from, sizeof(x));
  return make<To>([&](int i) { return x[i]; });
}
template <class Vector, class To, class Function>
VITRINE_EMULATED Vector narrow(const __m512i& a, const Function& function) {
  const auto x = Lanes<int32_t>::of(a);
  To out[16];
  for (int i = 0; i < 16; ++i) out[i] = static_cast<To>(function(x.lane[i]));
  return load<Vector>(out);
}

// min and max give their second operand where one is NaN or both are equal.
VITRINE_EMULATED float larger(float a, float b) { return a > b ? a : b; }
VITRINE_EMULATED float smaller(float a, float b) { return a < b ? a : b; }
VITRINE_EMULATED bool compare(float a, float b, int predicate) {
  switch (predicate) {
    case _CMP_EQ_OQ: return a == b;
    case _CMP_GT_OQ: return a > b;
    case _CMP_GE_OQ: return a >= b;
    case _CMP_LT_OQ: return a < b;
    case _CMP_NLT_UQ: return !(a < b);
    case _CMP_NLE_UQ: return !(a <= b);
    case _CMP_UNORD_Q: return std::isnan(a) || std::isnan(b);
    default: __builtin_trap();
  }
}
VITRINE_EMULATED int32_t round_to_int(float x) {  // in the default mode: halves to even
  const float rounded = std::nearbyint(x);
  return rounded >= -0x1p31F && rounded < 0x1p31F ? static_cast<int32_t>(rounded)
                                                  : std::numeric_limits<int32_t>::min();
}
VITRINE_EMULATED float times_power(float x, float n) {  // rounded once: exact in double
  if (std::isnan(n)) return n;
  return static_cast<float>(
      std::ldexp(static_cast<double>(x), static_cast<int>(larger(-2000, smaller(2000, n)))));
}
VITRINE_EMULATED int32_t dot4(int32_t sum, const uint8_t* a, const int8_t* b) {
  for (int i = 0; i < 4; ++i) sum += int32_t{a[i]} * int32_t{b[i]};
  return sum;
}
VITRINE_EMULATED __m512i dpbusd(const __m512i& sum, const __m512i& a, const __m512i& b) {
  const auto x = Lanes<uint8_t>::of(a);
  const auto y = Lanes<int8_t>::of(b);
  const auto z = Lanes<int32_t>::of(sum);
  return make<int32_t>([&](int i) { return dot4(z.lane[i], x.lane + 4 * i, y.lane + 4 * i); });
}
VITRINE_EMULATED __m512i dpwssd(const __m512i& sum, const __m512i& a, const __m512i& b) {
  const auto x = Lanes<int16_t>::of(a);
  const auto y = Lanes<int16_t>::of(b);
  const auto z = Lanes<int32_t>::of(sum);
  return make<int32_t>([&](int i) {
    const int64_t pair =
        int64_t{x.lane[2 * i]} * y.lane[2 * i] + int64_t{x.lane[2 * i + 1]} * y.lane[2 * i + 1];
    return static_cast<uint32_t>(z.lane[i] + pair);
  });
}
VITRINE_EMULATED __m256i dpbusd256(const __m256i& sum, const __m256i& a, const __m256i& b) {
  uint8_t x[32];
  int8_t y[32];
  int32_t z[8];
  store(x, a);
  store(y, b);
  store(z, sum);
  for (int i = 0; i < 8; ++i) z[i] = dot4(z[i], x + 4 * i, y + 4 * i);
  return load<__m256i>(z);
}
VITRINE_EMULATED __m512i madd16(const __m512i& a, const __m512i& b) {
  const auto x = Lanes<int16_t>::of(a);
  const auto y = Lanes<int16_t>::of(b);
  return make<int32_t>(
      [&](int i) { return x.lane[2 * i] * y.lane[2 * i] + x.lane[2 * i + 1] * y.lane[2 * i + 1]; });
}
VITRINE_EMULATED __m512i shuffle8(const __m512i& a, const __m512i& order) {
  const auto x = Lanes<uint8_t>::of(a);
  const auto y = Lanes<uint8_t>::of(order);
  return make<uint8_t>(
      [&](int i) { return (y.lane[i] & 0x80) != 0 ? 0 : x.lane[(i & ~15) + (y.lane[i] & 15)]; });
}
VITRINE_EMULATED __m512i pick_of_two(const __m512i& a, const __m512i& order, const __m512i& b) {
  const auto x = Lanes<int32_t>::of(a);
  const auto y = Lanes<int32_t>::of(b);
  const auto from = Lanes<uint32_t>::of(order);
  return make<int32_t>([&](int i) {
    return (from.lane[i] & 16) != 0 ? y.lane[from.lane[i] & 15] : x.lane[from.lane[i] & 15];
  });
}
VITRINE_EMULATED __m512 pick(const __m512i& order, const __m512& a) {
  const auto x = Lanes<float>::of(a);
  const auto from = Lanes<uint32_t>::of(order);
  return make<float>([&](int i) { return x.lane[from.lane[i] & 15]; });
}
VITRINE_EMULATED __m512 shuffle_within(const __m512& a, const __m512& b, int order) {
  const auto x = Lanes<float>::of(a);
  const auto y = Lanes<float>::of(b);
  return make<float>([&](int i) {
    const int from = (i & ~3) + (order >> (2 * (i & 3)) & 3);
    return (i & 2) != 0 ? y.lane[from] : x.lane[from];
  });
}
VITRINE_EMULATED __m512 shuffle_quarters(const __m512& a, const __m512& b, int order) {
  const auto x = Lanes<float>::of(a);
  const auto y = Lanes<float>::of(b);
  return make<float>([&](int i) {
    const int from = (order >> (2 * (i / 4)) & 3) * 4 + i % 4;
    return i >= 8 ? y.lane[from] : x.lane[from];
  });
}
/// Takes lanes by turns from the lower or upper half of each 128 bits.
template <class T>
VITRINE_EMULATED Lanes<T> unpack(const __m512i& a, const __m512i& b, bool upper) {
  constexpr int kPart = 16 / sizeof(T);
  const auto x = Lanes<T>::of(a);
  const auto y = Lanes<T>::of(b);
  return make<T>([&](int i) {
    const int from = i / kPart * kPart + (upper ? kPart / 2 : 0) + i % kPart / 2;
    return i % 2 == 0 ? x.lane[from] : y.lane[from];
  });
}
/// In each 128 bits first a's, then b's, saturated.
template <class To, class From>
VITRINE_EMULATED Lanes<To> pack(const __m512i& a, const __m512i& b) {
  constexpr int kPart = 16 / sizeof(From);
  const auto x = Lanes<From>::of(a);
  const auto y = Lanes<From>::of(b);
  return make<To>([&](int i) {
    const int from = i / (2 * kPart) * kPart + i % kPart;
    const From v = i / kPart % 2 == 0 ? x.lane[from] : y.lane[from];
    const From low = std::numeric_limits<To>::min(), high = std::numeric_limits<To>::max();
    return v < low ? low : v > high ? high : v;
  });
}
VITRINE_EMULATED __m512 compress(uint64_t mask, const __m512& a) {
  const auto x = Lanes<float>::of(a);
  auto out = same(0.0F);
  int count = 0;
  for (int i = 0; i < 16; ++i) {
    if ((mask >> i & 1) != 0) out.lane[count++] = x.lane[i];
  }
  return out;
}
VITRINE_EMULATED __m512i gather(const __m512i& at, const void* base, int scale) {
  const auto x = Lanes<int32_t>::of(at);
  return make<int32_t>([&](int i) {
    return load<int32_t>(static_cast<const char*>(base) + int64_t{x.lane[i]} * scale);
  });
}
VITRINE_EMULATED __m512 fma(const __m512& a, const __m512& b, const __m512& c) {
  const auto x = Lanes<float>::of(a);
  const auto y = Lanes<float>::of(b);
  const auto z = Lanes<float>::of(c);
  return make<float>([&](int i) { return __builtin_fmaf(x.lane[i], y.lane[i], z.lane[i]); });
}
template <class T>  // a shift by more than a lane has bits gives 0
VITRINE_EMULATED __m512i shift(const __m512i& a, uint64_t left, uint64_t right) {
  return map<T>(a, [&](T x) {
    return left >= 8 * sizeof(T) || right >= 8 * sizeof(T) ? 0 : x << left >> right;
  });
}
VITRINE_EMULATED uint64_t low_word(const __m128i& v) { return load<uint64_t>(&v); }

/// What runs the emulation: 256-bit instructions stay as they are. So that cpu_features.cc can be
/// asked on a machine without them.
VITRINE_EMULATED bool can_emulate() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}

// AMX: eight tiles of at most 16 rows of 64 bytes, a set for each thread.
struct Tiles {
  uint16_t row_bytes[16];
  uint8_t rows[16];
  uint8_t data[8][16][64];
};
inline thread_local Tiles tiles;

VITRINE_EMULATED void tile_configure(const void* config) {
  std::memcpy(tiles.row_bytes, static_cast<const char*>(config) + 16, sizeof(tiles.row_bytes));
  std::memcpy(tiles.rows, static_cast<const char*>(config) + 48, sizeof(tiles.rows));
  std::memset(tiles.data, 0, sizeof(tiles.data));
}
VITRINE_EMULATED void tile_zero(int tile) { std::memset(tiles.data[tile], 0, 16 * 64); }
VITRINE_EMULATED void tile_load(int tile, const void* from, int64_t stride) {
  tile_zero(tile);
  for (int row = 0; row < tiles.rows[tile]; ++row) {
    std::memcpy(tiles.data[tile][row], static_cast<const char*>(from) + row * stride,
                tiles.row_bytes[tile]);
  }
}
VITRINE_EMULATED void tile_store(int tile, void* to, int64_t stride) {
  for (int row = 0; row < tiles.rows[tile]; ++row) {
    std::memcpy(static_cast<char*>(to) + row * stride, tiles.data[tile][row],
                tiles.row_bytes[tile]);
  }
}
VITRINE_EMULATED void tile_dot(int sums, int a, int b) {
  for (int m = 0; m < tiles.rows[sums]; ++m) {
    for (int n = 0; n < tiles.row_bytes[sums] / 4; ++n) {
      auto sum = load<int32_t>(tiles.data[sums][m] + 4 * n);
      for (int k = 0; k < tiles.row_bytes[a]; ++k) {
        sum += int32_t{static_cast<int8_t>(tiles.data[a][m][k])} *
               int32_t{static_cast<int8_t>(tiles.data[b][k / 4][4 * n + k % 4])};
      }
      store(tiles.data[sums][m] + 4 * n, sum);
    }
  }
}

}  // namespace vitrine::kernels::emulated

#define VE ::vitrine::kernels::emulated
#define VE_PS(x) static_cast<__m512>(x)
#define VE_I(x) static_cast<__m512i>(x)
#define VE_M16(x) static_cast<__mmask16>(x)

// An empty statement that keeps a value in a register; no register of this kind need exist.
#define asm(...)
// What cpu_features.cc asks. AMX's registers are asked for by a system call, which may refuse.
#define __builtin_cpu_supports(name) VE::can_emulate()
#define syscall(...) (__VA_ARGS__, 0)
#undef __AVXVNNI__
#define __AVXVNNI__ 1

#define _mm512_set1_ps(x) VE_PS(VE::same<float>(x))
#define _mm512_set1_epi32(x) VE_I(VE::same<int32_t>(x))
#define _mm512_set1_epi8(x) VE_I(VE::same<int8_t>(static_cast<int8_t>(x)))
#define _mm512_setzero_ps() VE_PS(VE::same(0.0F))
#define _mm512_setzero_si512() VE_I(VE::same(0))
#define _mm512_setr_epi32(...)           \
  [&] {                                  \
    const int32_t v[16] = {__VA_ARGS__}; \
    return VE::load<__m512i>(v);         \
  }()

#define _mm512_loadu_ps(p) VE::load<__m512>(p)
#define _mm512_load_ps(p) VE::load<__m512>(p)
#define _mm512_loadu_si512(p) VE::load<__m512i>(p)
#define _mm512_load_si512(p) VE::load<__m512i>(p)
#define _mm512_maskz_loadu_ps(k, p) VE_PS(VE::load_some<float>(k, p, _mm512_setzero_ps()))
#define _mm512_maskz_loadu_epi32(k, p) VE_I(VE::load_some<int32_t>(k, p, _mm512_setzero_si512()))
#define _mm512_mask_loadu_ps(a, k, p) VE_PS(VE::load_some<float>(k, p, a))
#define _mm256_maskz_loadu_epi16(k, p) VE::load_shorts(k, p)
#define _mm_maskz_loadu_epi8(k, p) VE::load_bytes(k, p)
#define _mm512_storeu_ps(p, v) VE::store(p, v)
#define _mm512_store_ps(p, v) VE::store(p, v)
#define _mm512_storeu_si512(p, v) VE::store(p, v)
#define _mm512_store_si512(p, v) VE::store(p, v)
#define _mm512_mask_storeu_ps(p, k, v) VE::store_some<float>(p, k, v)
#define _mm512_mask_storeu_epi16(p, k, v) VE::store_some<int16_t>(p, k, v)
#define _mm512_mask_storeu_epi64(p, k, v) VE::store_some<int64_t>(p, k, v)

#define VE_ZIP(T, cast, a, b, expression) \
  cast(VE::zip<T>(a, b, [](T x, T y) { return expression; }))
#define _mm512_add_ps(a, b) VE_ZIP(float, VE_PS, a, b, x + y)
#define _mm512_sub_ps(a, b) VE_ZIP(float, VE_PS, a, b, x - y)
#define _mm512_mul_ps(a, b) VE_ZIP(float, VE_PS, a, b, x* y)
#define _mm512_div_ps(a, b) VE_ZIP(float, VE_PS, a, b, x / y)
#define _mm512_max_ps(a, b) VE_ZIP(float, VE_PS, a, b, VE::larger(x, y))
#define _mm512_min_ps(a, b) VE_ZIP(float, VE_PS, a, b, VE::smaller(x, y))
#define _mm512_xor_ps(a, b) \
  VE_PS(VE::zip<uint32_t>(a, b, [](uint32_t x, uint32_t y) { return x ^ y; }))
#define _mm512_abs_ps(a) VE_PS(VE::map<float>(a, [](float x) { return std::fabs(x); }))
#define _mm512_scalef_ps(a, b) VE_ZIP(float, VE_PS, a, b, VE::times_power(x, std::floor(y)))
#define _mm512_fmadd_ps(a, b, c) VE::fma(a, b, c)
#define _mm512_fmsub_ps(a, b, c) VE::fma(a, b, VE::map<float>(c, std::negate<float>()))
#define _mm512_mask_mov_ps(a, k, b) VE_PS(VE::choose<float>(k, b, a))
#define _mm512_maskz_mul_ps(k, a, b) _mm512_mask_mov_ps(_mm512_setzero_ps(), k, _mm512_mul_ps(a, b))
#define _mm512_mask_add_ps(s, k, a, b) _mm512_mask_mov_ps(s, k, _mm512_add_ps(a, b))
#define _mm512_mask_sub_ps(s, k, a, b) _mm512_mask_mov_ps(s, k, _mm512_sub_ps(a, b))
#define _mm512_mask_mul_ps(s, k, a, b) _mm512_mask_mov_ps(s, k, _mm512_mul_ps(a, b))
#define _mm512_mask_max_ps(s, k, a, b) _mm512_mask_mov_ps(s, k, _mm512_max_ps(a, b))
#define _mm512_mask3_fmadd_ps(a, b, c, k) _mm512_mask_mov_ps(c, k, VE::fma(a, b, c))

#define _mm512_and_si512(a, b) VE_ZIP(uint64_t, VE_I, a, b, x& y)
#define _mm512_or_si512(a, b) VE_ZIP(uint64_t, VE_I, a, b, x | y)
#define _mm512_xor_si512(a, b) VE_ZIP(uint64_t, VE_I, a, b, x ^ y)
#define _mm512_andnot_si512(a, b) VE_ZIP(uint64_t, VE_I, a, b, ~x& y)
#define _mm512_add_epi16(a, b) VE_ZIP(uint16_t, VE_I, a, b, x + y)
#define _mm512_max_epi32(a, b) VE_ZIP(int32_t, VE_I, a, b, x > y ? x : y)
#define _mm512_add_epi32(a, b) VE_ZIP(uint32_t, VE_I, a, b, x + y)
#define _mm512_add_epi64(a, b) VE_ZIP(uint64_t, VE_I, a, b, x + y)
#define _mm512_sub_epi8(a, b) VE_ZIP(uint8_t, VE_I, a, b, x - y)
#define _mm512_sub_epi32(a, b) VE_ZIP(uint32_t, VE_I, a, b, x - y)
#define _mm512_mullo_epi32(a, b) VE_ZIP(uint32_t, VE_I, a, b, x* y)
#define _mm512_mul_epu32(a, b) VE_ZIP(uint64_t, VE_I, a, b, (x & 0xffffffff) * (y & 0xffffffff))
#define _mm512_mask_max_epu32(s, k, a, b) \
  VE_I(VE::choose<uint32_t>(k, VE_ZIP(uint32_t, VE_I, a, b, x > y ? x : y), s))
#define _mm512_madd_epi16(a, b) VE::madd16(a, b)
#define _mm512_dpbusd_epi32(s, a, b) VE::dpbusd(s, a, b)
#define _mm512_dpwssd_epi32(s, a, b) VE::dpwssd(s, a, b)
#define _mm256_dpbusd_avx_epi32(s, a, b) VE::dpbusd256(s, a, b)
#define _mm512_slli_epi16(a, n) VE::shift<uint16_t>(a, n, 0)
#define _mm512_slli_epi32(a, n) VE::shift<uint32_t>(a, n, 0)
#define _mm512_srli_epi16(a, n) VE::shift<uint16_t>(a, 0, n)
#define _mm512_srli_epi32(a, n) VE::shift<uint32_t>(a, 0, n)
#define _mm512_srli_epi64(a, n) VE::shift<uint64_t>(a, 0, n)
#define _mm512_sll_epi16(a, n) VE::shift<uint16_t>(a, VE::low_word(n), 0)
#define _mm512_srl_epi16(a, n) VE::shift<uint16_t>(a, 0, VE::low_word(n))
#define _mm512_srai_epi32(a, n) VE_I(VE::map<int32_t>(a, [&](int32_t x) { return x >> (n); }))
#define _mm512_sllv_epi32(a, b) VE_ZIP(uint32_t, VE_I, a, b, y > 31 ? 0 : x << y)

#define _mm512_cmp_ps_mask(a, b, how) \
  VE_M16(VE::mask_of<float>(a, b, [](float x, float y) { return VE::compare(x, y, how); }))
#define _mm512_mask_cmp_ps_mask(k, a, b, how) VE_M16((k)&_mm512_cmp_ps_mask(a, b, how))
#define _mm512_cmple_epu32_mask(a, b) VE_M16(VE::mask_of<uint32_t>(a, b, std::less_equal<>()))
#define _mm512_cmpgt_epu32_mask(a, b) VE_M16(VE::mask_of<uint32_t>(a, b, std::greater<>()))
#define _mm512_cmpeq_epi32_mask(a, b) VE_M16(VE::mask_of<int32_t>(a, b, std::equal_to<>()))
#define _mm512_mask_blend_epi32(k, a, b) VE_I(VE::choose<uint32_t>(k, b, a))
#define _mm512_mask_blend_epi16(k, a, b) VE_I(VE::choose<uint16_t>(k, b, a))

#define _mm512_castps_si512(a) __builtin_bit_cast(__m512i, a)
#define _mm512_castsi512_ps(a) __builtin_bit_cast(__m512, a)
#define _mm512_castps512_ps256(a) _mm512_extractf32x8_ps(a, 0)
#define _mm512_extractf32x8_ps(a, n) \
  [](const __m512& v) { return VE::load<__m256>(reinterpret_cast<const float*>(&v) + 8 * (n)); }(a)
#define _mm512_cvtss_f32(a) VE::Lanes<float>::of(a).lane[0]
#define _mm512_broadcast_i32x4(a)        \
  [](const __m128i& v) {                 \
    const __m128i all[4] = {v, v, v, v}; \
    return VE::load<__m512i>(all);       \
  }(a)
#define _mm512_broadcast_f32x8(a)  \
  [](const __m256& v) {            \
    const __m256 both[2] = {v, v}; \
    return VE::load<__m512>(both); \
  }(a)
#define VE_WIDEN(To, From, Vector, a) \
  [](const Vector& v) { return VE_I((VE::widen<To, From>(&v))); }(a)
#define _mm512_cvtepu8_epi32(a) VE_WIDEN(int32_t, uint8_t, __m128i, a)
#define _mm512_cvtepi8_epi32(a) VE_WIDEN(int32_t, int8_t, __m128i, a)
#define _mm512_cvtepu16_epi32(a) VE_WIDEN(int32_t, uint16_t, __m256i, a)
#define _mm512_cvtepi8_epi16(a) VE_WIDEN(int16_t, int8_t, __m256i, a)
#define _mm512_cvtepi32_ps(a) \
  VE_PS(VE::make<float>([x = VE::Lanes<int32_t>::of(a)](int i) { return x.lane[i]; }))
#define _mm512_cvt_roundps_epi32(a, mode) \
  VE_I(VE::make<int32_t>(                 \
      [x = VE::Lanes<float>::of(a)](int i) { return VE::round_to_int(x.lane[i]); }))
#define _mm512_cvtps_epi32(a) _mm512_cvt_roundps_epi32(a, 0)
#define _mm512_cvtph_ps(a)                                                     \
  [](const __m256i& v) {                                                       \
    const __m256 parts[2] = {_mm256_cvtph_ps(_mm256_castsi256_si128(v)),       \
                             _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1))}; \
    return VE::load<__m512>(parts);                                            \
  }(a)
#define _mm512_cvtepi32_epi8(a) VE::narrow<__m128i, int8_t>(a, [](int32_t x) { return x; })
#define _mm512_cvtepi32_epi16(a) VE::narrow<__m256i, int16_t>(a, [](int32_t x) { return x; })
#define _mm512_cvtsepi32_epi8(a) \
  VE::narrow<__m128i, int8_t>(a, [](int32_t x) { return x > 127 ? 127 : x < -128 ? -128 : x; })

#define _mm512_shuffle_epi8(a, b) VE::shuffle8(a, b)
#define _mm512_permutex2var_epi32(a, order, b) VE::pick_of_two(a, order, b)
#define _mm512_permutexvar_epi32(order, a) \
  _mm512_castps_si512(VE::pick(order, _mm512_castsi512_ps(a)))
#define _mm512_unpacklo_epi32(a, b) VE_I(VE::unpack<int32_t>(a, b, false))
#define _mm512_unpackhi_epi32(a, b) VE_I(VE::unpack<int32_t>(a, b, true))
#define _mm512_unpacklo_epi64(a, b) VE_I(VE::unpack<int64_t>(a, b, false))
#define _mm512_unpackhi_epi64(a, b) VE_I(VE::unpack<int64_t>(a, b, true))
#define _mm512_packs_epi32(a, b) VE_I((VE::pack<int16_t, int32_t>(a, b)))
#define _mm512_packs_epi16(a, b) VE_I((VE::pack<int8_t, int16_t>(a, b)))
#define _mm512_permutexvar_ps(order, a) VE::pick(order, a)
#define _mm512_shuffle_ps(a, b, order) VE::shuffle_within(a, b, order)
#define _mm512_shuffle_f32x4(a, b, order) VE::shuffle_quarters(a, b, order)
#define _mm512_maskz_compress_ps(k, a) VE::compress(k, a)
#define _mm512_i32gather_epi32(at, base, scale) VE::gather(at, base, scale)

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#define _tile_loadconfig(config) VE::tile_configure(config)
#define _tile_release()
#define _tile_zero(tile) VE::tile_zero(tile)
#define _tile_loadd(tile, from, stride) VE::tile_load(tile, from, stride)
#define _tile_stored(tile, to, stride) VE::tile_store(tile, to, stride)
#define _tile_dpbssd(sums, a, b) VE::tile_dot(sums, a, b)

#include "emulated_bytes.h"
