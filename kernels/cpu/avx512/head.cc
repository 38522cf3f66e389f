// SPDX-License-Identifier: Apache-2.0
// Statistics of the output head's logits, AVX-512.
#include "../fetch.h"
#include "../logits_hash.h"
#include "../top_list.h"
#include "avx512.h"
#include "math.h"

namespace vitrine::kernels::avx512 {
namespace {

/// A value that at least kTopTokens of the entries reach: the kTopTokens-th largest of the 16 lane
/// maxima. -inf where fewer lanes than that hold an entry.
float top_threshold(__m512 lanes_max) {
  alignas(64) float lane[16];
  _mm512_store_ps(lane, lanes_max);
  float threshold = -__builtin_inff();
  for (int j = 0; j < 16; ++j) {
    const __m512 v = _mm512_set1_ps(lane[j]);
    const int reach = __builtin_popcount(_mm512_cmp_ps_mask(lanes_max, v, _CMP_GE_OQ));
    const float reached = reach >= kTopTokens ? lane[j] : threshold;
    threshold = reached > threshold ? reached : threshold;
  }
  return threshold;
}

uint32_t sum_words(__m512i words) {
  // The intrinsic that reduces adds signed numbers, which must not overflow.
  alignas(64) uint32_t lanes[16];
  _mm512_store_si512(lanes, words);
  uint32_t sum = 0;
  for (const uint32_t lane : lanes) sum += lane;
  return sum;
}

VITRINE_INLINE __m512 plus_infinity() { return _mm512_set1_ps(__builtin_inff()); }

struct FirstPass {
  __m512 largest;   // per lane; NaN entries are left out
  __m512 smallest;  // the same
  __mmask16 nan = 0;
  uint64_t hash = 0;

  /// Whether no entry is so far below the largest that it counts as nothing.
  bool is_close(float max) const {
    const __m512 farthest = _mm512_sub_ps(smallest, _mm512_set1_ps(max));
    const __m512 low = _mm512_set1_ps(kExpStatisticsLow);
    return _mm512_cmp_ps_mask(farthest, low, _CMP_NLT_UQ) == 0xffff;
  }
};

/// Multiplies the logits and finds the extremes.
FirstPass find_extremes(float* logits, int64_t count, float multiplier) {
  FirstPass found{minus_infinity(), plus_infinity()};
  const bool scale = multiplier != 1.0f;
  const __m512 factor = _mm512_set1_ps(multiplier);
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 mask = first_lanes(count - i);
    __m512 v = _mm512_mask_loadu_ps(minus_infinity(), mask, logits + i);
    if (scale) {
      v = _mm512_mask_mul_ps(v, mask, v, factor);
      _mm512_mask_storeu_ps(logits + i, mask, v);
    }
    found.nan |= _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    found.largest = _mm512_max_ps(v, found.largest);
    const __m512 known = _mm512_mask_mov_ps(plus_infinity(), mask, v);
    found.smallest = _mm512_min_ps(known, found.smallest);
  }
  return found;
}

constexpr int kChunk = 64;  // entries; hardly any chunk has one of the best
static_assert(kChunk <= kMaxChunk);

/// Per lane, the largest of each chunk of a block.
struct ChunkMaxima {
  alignas(64) float at[kHeadBlock / kChunk][16];
};

/// Finds the extremes of a whole block, and the chunks' largest by the way. With `kStatistics` it
/// also finds the least and makes the hash of hash_whole_block; the sums tell whether a logit is
/// NaN.
template <bool kStatistics>
FirstPass find_extremes_of_block(float* logits, float multiplier, ChunkMaxima* chunks,
                                 const char* next) {
  constexpr int kVectors = kChunk / 16;
  constexpr int kHalf = kHeadBlock / 2;  // whose rows r % 8 meet the same low keys
  FirstPass found{minus_infinity(), plus_infinity()};
  __m512 second_largest = minus_infinity();
  // Several of each, since each waits for the one before.
  __m512 smallest[kVectors];
  __m512i low_sums[kVectors], high_sums[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    smallest[j] = plus_infinity();
    low_sums[j] = high_sums[j] = _mm512_setzero_si512();
  }
  const bool scale = multiplier != 1.0f;
  const __m512 factor = _mm512_set1_ps(multiplier);
  const auto load = [&](float* at) __attribute__((always_inline)) {
    __m512 v = _mm512_loadu_ps(at);
    if (scale) {
      v = _mm512_mul_ps(v, factor);
      _mm512_storeu_ps(at, v);
    }
    return v;
  };
  const auto add_products =
      [](__m512i & sums, __m512 v, const uint32_t* keys) __attribute__((always_inline)) {
    sums = _mm512_dpwssd_epi32(sums, _mm512_castps_si512(v), _mm512_load_si512(keys));
  };
  const auto fetch_line = [&](int entry) __attribute__((always_inline)) {
    if (next != nullptr) fetch(next + entry / 16 * 64);
  };
  const auto largest_of = [](const __m512* v) __attribute__((always_inline)) {
    return _mm512_max_ps(_mm512_max_ps(v[3], v[2]), _mm512_max_ps(v[1], v[0]));
  };
  for (int i = 0; i < kHalf; i += kChunk) {
    const int row = i / 16;
    __m512 a[kVectors], b[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      const int at = i + 16 * j;
      fetch_line(at);
      fetch_line(at + kHalf);
      a[j] = load(logits + at);
      b[j] = load(logits + at + kHalf);
      if constexpr (kStatistics) {
        smallest[j] = _mm512_min_ps(b[j], _mm512_min_ps(a[j], smallest[j]));
        const uint32_t* low_keys = kHashKeys.low[row % kHashRows + j];
        add_products(low_sums[j], a[j], low_keys);
        add_products(low_sums[j], b[j], low_keys);
        add_products(high_sums[j], a[j], kHashKeys.high[row / kHashRows]);
        add_products(high_sums[j], b[j], kHashKeys.high[row / kHashRows + kHashRows / 2]);
      } else {
        found.nan |= _mm512_cmp_ps_mask(a[j], b[j], _CMP_UNORD_Q);
      }
    }
    const __m512 first_chunk = largest_of(a);
    const __m512 second_chunk = largest_of(b);
    _mm512_store_ps(chunks->at[i / kChunk], first_chunk);
    _mm512_store_ps(chunks->at[(i + kHalf) / kChunk], second_chunk);
    found.largest = _mm512_max_ps(first_chunk, found.largest);
    second_largest = _mm512_max_ps(second_chunk, second_largest);
  }
  found.largest = _mm512_max_ps(second_largest, found.largest);  // the earlier of equal zeros
  if constexpr (kStatistics) {
    for (int j = 0; j < kVectors; ++j) found.smallest = _mm512_min_ps(smallest[j], found.smallest);
    const auto sum = [](const __m512i* sums) {
      return sum_words(
          _mm512_add_epi32(_mm512_add_epi32(sums[0], sums[1]), _mm512_add_epi32(sums[2], sums[3])));
    };
    found.hash = hash_of_sums(sum(low_sums), sum(high_sums));
  }
  return found;
}

/// One entry after the other, those that reach a threshold.
void list_best_in_order(const float* logits, int64_t count, int64_t first_id, __m512 lanes_max,
                        HeadBlockStats* stats) {
  BestEntries best{stats, logits, first_id, top_threshold(lanes_max)};
  for (int64_t i = 0; i < count; i += 16) {
    const __mmask16 mask = first_lanes(count - i);
    const __m512 v = _mm512_maskz_loadu_ps(mask, logits + i);
    const __m512 threshold = _mm512_set1_ps(best.threshold);
    take_reaching(best, _mm512_mask_cmp_ps_mask(mask, v, threshold, _CMP_GE_OQ), i);
  }
}

/// Lists the best of a whole block without NaN: a few entries reach the threshold, and each one's
/// place is how many of them are before it, so that no branch depends on their order. Returns false
/// where they are too many (equal logits).
bool list_best_by_place(const float* logits, int64_t first_id, __m512 lanes_max,
                        const ChunkMaxima& chunks, HeadBlockStats* stats) {
  const __m512 threshold = _mm512_set1_ps(top_threshold(lanes_max));
  uint32_t reaching = 0;
  for (int c = 0; c < kHeadBlock / kChunk; ++c) {
    const __m512 largest = _mm512_load_ps(chunks.at[c]);
    reaching |= uint32_t{_mm512_cmp_ps_mask(largest, threshold, _CMP_GE_OQ) != 0} << c;
  }
  Candidates found;
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  for (; reaching != 0; reaching &= reaching - 1) {
    const int first = kChunk * __builtin_ctz(reaching);
    for (int i = first; i < first + kChunk; i += 16) {
      const __m512 v = _mm512_loadu_ps(logits + i);
      const __mmask16 mask = _mm512_cmp_ps_mask(v, threshold, _CMP_GE_OQ);
      const __m512i ids =
          _mm512_add_epi32(lanes, _mm512_set1_epi32(static_cast<int>(first_id + i)));
      _mm512_storeu_ps(found.values + found.count, _mm512_maskz_compress_ps(mask, v));
      const __m512 reaching_ids = _mm512_maskz_compress_ps(mask, _mm512_castsi512_ps(ids));
      _mm512_storeu_si512(found.ids + found.count, _mm512_castps_si512(reaching_ids));
      found.count += __builtin_popcount(mask);
    }
    if (found.count > kMaxCandidates) return false;
  }
  _mm512_storeu_ps(found.values + found.count, minus_infinity());
  _mm512_storeu_ps(found.values + found.count + 16, minus_infinity());
  const __m512 low = _mm512_load_ps(found.values);
  const __m512 high = _mm512_load_ps(found.values + 16);
  for (int i = 0; i < found.count; ++i) {
    const __m512 v = _mm512_set1_ps(found.values[i]);
    const uint32_t above = _mm512_cmp_ps_mask(low, v, _CMP_GT_OQ) |
                           uint32_t{_mm512_cmp_ps_mask(high, v, _CMP_GT_OQ)} << 16;
    const uint32_t reach = _mm512_cmp_ps_mask(low, v, _CMP_GE_OQ) |
                           uint32_t{_mm512_cmp_ps_mask(high, v, _CMP_GE_OQ)} << 16;
    found.put(i, above, reach);
  }
  found.give(stats);
  return true;
}

/// The head's exponential of lanes from kExpStatisticsLow to 0. `words`: kExp2Words, twice.
VITRINE_INLINE __m512 exp_statistics(__m512 x, __m512 words) {
  const __m512 magic = _mm512_set1_ps(kRoundMagic8);
  const __m512 log2e = _mm512_set1_ps(kLog2E);
  const __m512 rounded = _mm512_fmadd_ps(x, log2e, magic);
  const __m512 f = _mm512_fmsub_ps(x, log2e, _mm512_sub_ps(rounded, magic));
  const __m512i bits = _mm512_castps_si512(rounded);
  const __m512i powers = _mm512_castps_si512(_mm512_permutexvar_ps(bits, words));
  const __m512 power = _mm512_castsi512_ps(_mm512_add_epi32(powers, _mm512_slli_epi32(bits, 20)));
  __m512 q = _mm512_fmadd_ps(_mm512_set1_ps(kExp2D3), f, _mm512_set1_ps(kExp2D2));
  q = _mm512_fmadd_ps(q, f, _mm512_set1_ps(kExp2D1));
  return _mm512_fmadd_ps(_mm512_mul_ps(q, f), power, power);
}

/// Sums of exp(logit - max) and exp(logit - max) * (logit - max). `kClose`: FirstPass::is_close.
template <bool kClose>
void add_exponentials(const float* logits, int64_t count, HeadBlockStats* stats, const char* next) {
  const __m512 words =
      _mm512_broadcast_f32x8(_mm256_load_ps(reinterpret_cast<const float*>(kExp2Words.at)));
  const __m512 low = _mm512_set1_ps(kExpStatisticsLow);
  const __m512 max = _mm512_set1_ps(stats->max);
  __m512 sum_exp = _mm512_setzero_ps();
  __m512 sum_exp_logit = _mm512_setzero_ps();
  const auto take = [&](__m512 logit, __mmask16 mask) __attribute__((always_inline)) {
    const __m512 distance = _mm512_sub_ps(logit, max);
    if constexpr (!kClose) mask = _mm512_mask_cmp_ps_mask(mask, distance, low, _CMP_NLT_UQ);
    const __m512 e = exp_statistics(distance, words);
    sum_exp = _mm512_mask_add_ps(sum_exp, mask, sum_exp, e);
    sum_exp_logit = _mm512_mask3_fmadd_ps(e, distance, sum_exp_logit, mask);
  };
  int64_t i = 0;
  for (; i + 64 <= count; i += 64) {
#pragma GCC unroll 4
    for (int64_t j = i; j < i + 64; j += 16) {
      take(_mm512_loadu_ps(logits + j), 0xffff);
      if (next == nullptr) continue;
      fetch(next + j * 8);
      fetch(next + j * 8 + 64);
    }
  }
  for (; i < count; i += 16) {
    const __mmask16 mask = first_lanes(count - i);
    take(_mm512_maskz_loadu_ps(mask, logits + i), mask);
  }
  stats->sum_exp = sum_lanes(sum_exp);
  stats->sum_exp_logit = sum_lanes(sum_exp_logit);
}

}  // namespace

void head_block(float* logits, int64_t begin, int64_t end, float multiplier, bool statistics,
                HeadBlockStats* stats, const void* next) {
  const int64_t count = end - begin;
  logits += begin;
  ChunkMaxima chunks;
  const char* first_lines = static_cast<const char*>(next);
  const char* more_lines = next == nullptr ? nullptr : first_lines + kHeadBlock / 16 * 64;
  FirstPass found;
  const bool is_whole = count == kHeadBlock;
  if (!is_whole) {
    found = find_extremes(logits, count, multiplier);
    if (statistics) found.hash = hash_logits(logits, count);
  } else if (statistics) {
    found = find_extremes_of_block<true>(logits, multiplier, &chunks, first_lines);
  } else {
    found = find_extremes_of_block<false>(logits, multiplier, &chunks, first_lines);
  }
  const float max = max_lanes(found.largest);
  *stats = {.max = max, .hash = found.hash};
  const bool is_masked = max == -__builtin_inff();  // nothing but masked logits, or NaN
  if (found.nan == 0 && statistics && !is_masked) {
    if (found.is_close(max)) {
      add_exponentials<true>(logits, count, stats, more_lines);
    } else {
      add_exponentials<false>(logits, count, stats, more_lines);
    }
  }
  // Among a chunk's entries a NaN hides others, perhaps all; a sum that is NaN has met one, or
  // +inf.
  if (is_whole && (is_masked || stats->sum_exp != stats->sum_exp)) {
    found.nan = find_extremes(logits, count, 1.0f).nan;
  }
  if (found.nan != 0) stats->max = stats->sum_exp = stats->sum_exp_logit = __builtin_nanf("");
  // Behind the sums, whose arithmetic goes on while a branch in here was mispredicted.
  if (!is_whole || found.nan != 0 ||
      !list_best_by_place(logits, begin, found.largest, chunks, stats)) {
    list_best_in_order(logits, count, begin, found.largest, stats);
  }
}

}  // namespace vitrine::kernels::avx512
