// SPDX-License-Identifier: Apache-2.0
#include "scan.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "numerics.h"

namespace vitrine {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Eight floats; the compiler takes as many registers for them as the instruction set needs.
using Floats = float __attribute__((vector_size(32)));
using Masks = int32_t __attribute__((vector_size(32)));
static_assert(sizeof(Floats) == kScanLanes * sizeof(float));

[[gnu::always_inline]] inline bool scan_body(std::span<const float> logits, float* lane_maxima) {
  const Floats infinity = Floats{} + kInfinity;
  Masks all_fine = ~Masks{};
  bool is_tail_fine = true;
  for (size_t first = 0; first < logits.size(); first += kScanBlock) {
    const size_t end = std::min(first + kScanBlock, logits.size());
    Floats m0 = Floats{} - kInfinity, m1 = m0, m2 = m0, m3 = m0;  // a maximum takes four cycles
    size_t i = first;
    for (; i + 4 * kScanLanes <= end; i += 4 * kScanLanes) {
      Floats a, b, c, d;
      std::memcpy(&a, &logits[i], sizeof(a));
      std::memcpy(&b, &logits[i + kScanLanes], sizeof(b));
      std::memcpy(&c, &logits[i + 2 * kScanLanes], sizeof(c));
      std::memcpy(&d, &logits[i + 3 * kScanLanes], sizeof(d));
      all_fine &= (a < infinity) & (b < infinity) & (c < infinity) & (d < infinity);
      m0 = a > m0 ? a : m0;
      m1 = b > m1 ? b : m1;
      m2 = c > m2 ? c : m2;
      m3 = d > m3 ? d : m3;
    }
    m0 = m1 > m0 ? m1 : m0;
    m2 = m3 > m2 ? m3 : m2;
    m0 = m2 > m0 ? m2 : m0;
    float maxima[kScanLanes];
    std::memcpy(maxima, &m0, sizeof(maxima));
    for (; i < end; ++i) {
      is_tail_fine &= logits[i] < kInfinity;
      float& maximum = maxima[i % kScanLanes];
      maximum = logits[i] > maximum ? logits[i] : maximum;
    }
    std::memcpy(lane_maxima + first / kScanBlock * kScanLanes, maxima, sizeof(maxima));
  }
  bool is_fine = is_tail_fine;
  for (size_t lane = 0; lane < kScanLanes; ++lane) is_fine &= all_fine[lane] != 0;
  return is_fine;
}

[[gnu::always_inline]] inline float largest_body(std::span<const float> logits) {
  Floats even = Floats{} - kInfinity, odd = even;
  size_t i = 0;
  for (; i + 2 * kScanLanes <= logits.size(); i += 2 * kScanLanes) {
    Floats a, b;
    std::memcpy(&a, &logits[i], sizeof(a));
    std::memcpy(&b, &logits[i + kScanLanes], sizeof(b));
    even = a > even ? a : even;
    odd = b > odd ? b : odd;
  }
  even = odd > even ? odd : even;
  float largest = -kInfinity;
  for (size_t lane = 0; lane < kScanLanes; ++lane) {
    largest = even[lane] > largest ? even[lane] : largest;
  }
  for (; i < logits.size(); ++i) largest = logits[i] > largest ? logits[i] : largest;
  return largest;
}

[[gnu::always_inline]] inline bool finite_body(std::span<const float> logits) {
  const Floats infinity = Floats{} + kInfinity;
  Masks even = ~Masks{}, odd = even;
  size_t i = 0;
  for (; i + 2 * kScanLanes <= logits.size(); i += 2 * kScanLanes) {
    Floats a, b;
    std::memcpy(&a, &logits[i], sizeof(a));
    std::memcpy(&b, &logits[i + kScanLanes], sizeof(b));
    even &= (a < infinity) & (a > -infinity);
    odd &= (b < infinity) & (b > -infinity);
  }
  even &= odd;
  bool is_fine = true;
  for (size_t lane = 0; lane < kScanLanes; ++lane) is_fine &= even[lane] != 0;
  for (; i < logits.size(); ++i) is_fine &= logits[i] < kInfinity && logits[i] > -kInfinity;
  return is_fine;
}

[[gnu::always_inline]] inline double exponentials_body(std::span<const float> logits, float largest,
                                                       double* results) {
  const auto reference = static_cast<double>(largest);
  for (size_t i = 0; i < logits.size(); ++i) {
    results[i] = exp_nonpositive(static_cast<double>(logits[i]) - reference);
  }
  double sums[kScanLanes] = {};
  size_t i = 0;
  for (; i + kScanLanes <= logits.size(); i += kScanLanes) {
    for (size_t lane = 0; lane < kScanLanes; ++lane) sums[lane] += results[i + lane];
  }
  for (; i < logits.size(); ++i) sums[i % kScanLanes] += results[i];
  double sum = 0;
  for (const double part : sums) sum += part;
  return sum;
}

bool scan_portable(std::span<const float> logits, float* lane_maxima) {
  return scan_body(logits, lane_maxima);
}
float largest_portable(std::span<const float> logits) { return largest_body(logits); }
bool finite_portable(std::span<const float> logits) { return finite_body(logits); }
double exponentials_portable(std::span<const float> logits, float largest, double* results) {
  return exponentials_body(logits, largest, results);
}

#if defined(__x86_64__)
// Written out: one comparison tells of two registers whether one holds a NaN.
[[gnu::target("avx2")]] bool scan_avx2(std::span<const float> logits, float* lane_maxima) {
  const __m256 nothing = _mm256_set1_ps(-kInfinity);
  const size_t whole = logits.size() / kScanBlock;
  __m256 is_nan = _mm256_setzero_ps(), top = nothing;
  for (size_t block = 0; block < whole; ++block) {
    const float* const begin = logits.data() + block * kScanBlock;
    __m256 m0 = nothing, m1 = nothing, m2 = nothing, m3 = nothing;
    for (size_t i = 0; i < kScanBlock; i += 32) {
      const __m256 a = _mm256_loadu_ps(begin + i), b = _mm256_loadu_ps(begin + i + 8);
      const __m256 c = _mm256_loadu_ps(begin + i + 16), d = _mm256_loadu_ps(begin + i + 24);
      is_nan = _mm256_or_ps(is_nan, _mm256_or_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q),
                                                 _mm256_cmp_ps(c, d, _CMP_UNORD_Q)));
      m0 = _mm256_max_ps(a, m0);
      m1 = _mm256_max_ps(b, m1);
      m2 = _mm256_max_ps(c, m2);
      m3 = _mm256_max_ps(d, m3);
    }
    m0 = _mm256_max_ps(_mm256_max_ps(m0, m1), _mm256_max_ps(m2, m3));
    top = _mm256_max_ps(m0, top);
    _mm256_storeu_ps(lane_maxima + block * kScanLanes, m0);
  }
  const __m256 is_wrong =
      _mm256_or_ps(is_nan, _mm256_cmp_ps(top, _mm256_set1_ps(kInfinity), _CMP_EQ_OQ));
  const bool is_rest_fine =
      scan_body(logits.subspan(whole * kScanBlock), lane_maxima + whole * kScanLanes);
  return _mm256_movemask_ps(is_wrong) == 0 && is_rest_fine;
}
[[gnu::target("avx2")]] float largest_avx2(std::span<const float> logits) {
  return largest_body(logits);
}
[[gnu::target("avx2")]] bool finite_avx2(std::span<const float> logits) {
  return finite_body(logits);
}
[[gnu::target("avx2")]] double exponentials_avx2(std::span<const float> logits, float largest,
                                                 double* results) {
  return exponentials_body(logits, largest, results);
}

// Written out: GCC 12 makes a loop over single numbers of comparisons of 64-byte vectors.
[[gnu::target("avx512f")]] bool scan_avx512(std::span<const float> logits, float* lane_maxima) {
  const __m512 infinity = _mm512_set1_ps(kInfinity), nothing = _mm512_set1_ps(-kInfinity);
  const size_t whole = logits.size() / kScanBlock;
  __mmask16 is_fine = 0xffff;
  for (size_t block = 0; block < whole; ++block) {
    const float* const begin = logits.data() + block * kScanBlock;
    __m512 m0 = nothing, m1 = nothing, m2 = nothing, m3 = nothing;
    for (size_t i = 0; i < kScanBlock; i += 64) {
      const __m512 a = _mm512_loadu_ps(begin + i), b = _mm512_loadu_ps(begin + i + 16);
      const __m512 c = _mm512_loadu_ps(begin + i + 32), d = _mm512_loadu_ps(begin + i + 48);
      is_fine &= _mm512_cmp_ps_mask(a, infinity, _CMP_LT_OQ) &
                 _mm512_cmp_ps_mask(b, infinity, _CMP_LT_OQ) &
                 _mm512_cmp_ps_mask(c, infinity, _CMP_LT_OQ) &
                 _mm512_cmp_ps_mask(d, infinity, _CMP_LT_OQ);
      m0 = _mm512_max_ps(a, m0);
      m1 = _mm512_max_ps(b, m1);
      m2 = _mm512_max_ps(c, m2);
      m3 = _mm512_max_ps(d, m3);
    }
    float both[2 * kScanLanes];
    _mm512_storeu_ps(both, _mm512_max_ps(_mm512_max_ps(m0, m1), _mm512_max_ps(m2, m3)));
    for (size_t lane = 0; lane < kScanLanes; ++lane) {
      lane_maxima[block * kScanLanes + lane] = std::max(both[lane], both[lane + kScanLanes]);
    }
  }
  const bool is_rest_fine =
      scan_body(logits.subspan(whole * kScanBlock), lane_maxima + whole * kScanLanes);
  return is_fine == 0xffff && is_rest_fine;
}
[[gnu::target("avx512f,avx512dq,prefer-vector-width=512")]] double exponentials_avx512(
    std::span<const float> logits, float largest, double* results) {
  return exponentials_body(logits, largest, results);
}
#endif

}  // namespace

std::vector<ScanForms> scan_forms() {
  std::vector<ScanForms> forms = {
      {scan_portable, largest_portable, finite_portable, exponentials_portable}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) {
    forms.push_back({scan_avx2, largest_avx2, finite_avx2, exponentials_avx2});
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
    forms.push_back({scan_avx512, largest_avx2, finite_avx2, exponentials_avx512});
  }
#endif
  return forms;
}

namespace {

const ScanForms& best_forms() {
  static const ScanForms kForms = scan_forms().back();
  return kForms;
}

}  // namespace

bool scan_logits(std::span<const float> logits, float* lane_maxima) {
  return best_forms().scan(logits, lane_maxima);
}

float largest_of(std::span<const float> logits) { return best_forms().largest(logits); }

bool are_finite(std::span<const float> logits) { return best_forms().finite(logits); }

double exponentials(std::span<const float> logits, float largest, double* results) {
  return best_forms().exponentials(logits, largest, results);
}

double log_sum_beside(std::span<const float> logits, float largest) {
  std::array<double, kScanBlock> results;  // stay in the nearest cache
  double sum = 0;
  for (size_t first = 0; first < logits.size(); first += kScanBlock) {
    const size_t count = std::min(kScanBlock, logits.size() - first);
    sum += exponentials(logits.subspan(first, count), largest, results.data());
  }
  return log_positive(sum);
}

}  // namespace vitrine
