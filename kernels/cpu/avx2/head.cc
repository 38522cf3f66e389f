// SPDX-License-Identifier: Apache-2.0
// Statistics of the output head's logits, AVX2.
#include "../fetch.h"
#include "../logits_hash.h"
#include "../top_list.h"
#include "avx2.h"
#include "math.h"

namespace vitrine::kernels::avx2 {
namespace {

VITRINE_INLINE uint32_t compare_bits(Lanes a, Lanes b, bool or_equal) {
  if (or_equal) {
    return bits_of(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ),
                   _mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ));
  }
  return bits_of(_mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ),
                 _mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ));
}

VITRINE_INLINE Mask not_below(Lanes a, Lanes b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.low, b.low, _CMP_NLT_UQ)),
          _mm256_castps_si256(_mm256_cmp_ps(a.high, b.high, _CMP_NLT_UQ))};
}
VITRINE_INLINE Mask both(Mask a, Mask b) {
  return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}

/// A value that at least kTopTokens of the entries reach: the kTopTokens-th largest of the 16 lane
/// maxima. -inf where fewer lanes than that hold an entry.
float top_threshold(Lanes lanes_max) {
  float lane[16];
  store(lane, lanes_max);
  float threshold = -__builtin_inff();
  for (int j = 0; j < 16; ++j) {
    const int reach = __builtin_popcount(compare_bits(lanes_max, set_lanes(lane[j]), true));
    const float reached = reach >= kTopTokens ? lane[j] : threshold;
    threshold = reached > threshold ? reached : threshold;
  }
  return threshold;
}

VITRINE_INLINE __m256 plus_infinity_8() { return _mm256_set1_ps(__builtin_inff()); }

struct FirstPass {
  Lanes largest;    // per lane; NaN entries are left out
  __m256 smallest;  // per lane i mod 8, the same
  bool has_nan = false;
  uint64_t hash = 0;

  /// Whether no entry is so far below the largest that it counts as nothing.
  bool is_close(float max) const {
    const __m256 farthest = _mm256_sub_ps(smallest, _mm256_set1_ps(max));
    const __m256 low = _mm256_set1_ps(kExpStatisticsLow);
    return _mm256_movemask_ps(_mm256_cmp_ps(farthest, low, _CMP_LT_OQ)) == 0;
  }
};

/// Multiplies the logits and finds the extremes.
FirstPass find_extremes(float* logits, int64_t count, float multiplier) {
  FirstPass found{minus_infinity(), plus_infinity_8()};
  const bool scale = multiplier != 1.0f;
  const Lanes factor = set_lanes(multiplier);
  const auto take = [&](Lanes v) __attribute__((always_inline)) {
    found.has_nan |= nan_bits(v) != 0;
    found.largest = max(v, found.largest);
  };
  int64_t i = 0;
  for (; i + 16 <= count; i += 16) {
    Lanes v = load(logits + i);
    if (scale) {
      v = mul(v, factor);
      store(logits + i, v);
    }
    found.smallest = _mm256_min_ps(v.high, _mm256_min_ps(v.low, found.smallest));
    take(v);
  }
  if (i < count) {
    const Mask mask = first_lanes(count - i);
    Lanes v = load(logits + i, mask);  // 0 elsewhere
    if (scale) {
      v = mul(v, factor);
      store(logits + i, v, mask);
    }
    const Lanes known = blend(set_lanes(__builtin_inff()), v, mask);
    found.smallest = _mm256_min_ps(known.high, _mm256_min_ps(known.low, found.smallest));
    take(blend(minus_infinity(), v, mask));
  }
  return found;
}

constexpr int kChunk = 32;  // entries; hardly any chunk has one of the best
static_assert(kChunk <= kMaxChunk);

/// For each chunk of a block the largest of its lanes i mod 8.
struct ChunkMaxima {
  alignas(32) float at[kHeadBlock / kChunk][8];
};

/// Finds the extremes of a whole block, and the chunks' largest by the way. With `kStatistics` it
/// also finds the least and makes the hash of hash_whole_block; the sums tell whether a logit is
/// NaN.
template <bool kScale, bool kStatistics>
FirstPass find_extremes_of_block(float* logits, float multiplier, ChunkMaxima* chunks,
                                 const char* next) {
  constexpr int kHalf = kHeadBlock / 2;  // whose rows r % 8 meet the same low keys
  const __m256 factor = _mm256_set1_ps(multiplier);
  Lanes first_largest = minus_infinity();
  Lanes second_largest = first_largest;
  __m256 smallest = plus_infinity_8();
  __m256 unordered = _mm256_setzero_ps();
  __m256i low_sums = _mm256_setzero_si256();
  __m256i high_sums = _mm256_setzero_si256();
  const auto load_8 = [&](float* at) __attribute__((always_inline)) {
    __m256 v = _mm256_loadu_ps(at);
    if constexpr (kScale) {
      v = _mm256_mul_ps(v, factor);
      _mm256_storeu_ps(at, v);
    }
    return v;
  };
  const auto add_products =
      [](__m256i & sums, __m256 v, const uint32_t* keys) __attribute__((always_inline)) {
    const __m256i key = _mm256_load_si256(reinterpret_cast<const __m256i*>(keys));
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(_mm256_castps_si256(v), key));
  };
  const auto take = [&](int at, Lanes& pair) __attribute__((always_inline)) {
    const __m256 a = load_8(logits + at);
    const __m256 b = load_8(logits + at + kHalf);
    pair = {a, b};
    if constexpr (kStatistics) {
      smallest = _mm256_min_ps(_mm256_min_ps(b, a), smallest);
      const uint32_t row = static_cast<uint32_t>(at) / kHashLanes;
      const uint32_t lane = static_cast<uint32_t>(at) % kHashLanes;
      const uint32_t* low_keys = kHashKeys.low[row % kHashRows] + lane;
      add_products(low_sums, a, low_keys);
      add_products(low_sums, b, low_keys);
      add_products(high_sums, a, kHashKeys.high[row / kHashRows] + lane);
      add_products(high_sums, b, kHashKeys.high[row / kHashRows + kHashRows / 2] + lane);
    } else {
      unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
    }
  };
  for (int i = 0; i < kHalf; i += kChunk) {
    Lanes pair[4];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      if (next != nullptr) fetch(next + 8 * i + 64 * j);  // a line for 16 entries
      take(i + 8 * j, pair[j]);
    }
    const Lanes low = max(pair[2], pair[0]);
    const Lanes high = max(pair[3], pair[1]);
    const Lanes largest = max(high, low);
    _mm256_store_ps(chunks->at[i / kChunk], largest.low);
    _mm256_store_ps(chunks->at[(i + kHalf) / kChunk], largest.high);
    first_largest = max({low.low, high.low}, first_largest);
    second_largest = max({low.high, high.high}, second_largest);
  }
  const auto sum = [](__m256i sums) {
    alignas(32) uint32_t lanes[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), sums);
    uint32_t all = 0;
    for (const uint32_t lane : lanes) all += lane;
    return all;
  };
  // The earlier of equal zeros stays.
  return {max(second_largest, first_largest), smallest, _mm256_movemask_ps(unordered) != 0,
          kStatistics ? hash_of_sums(sum(low_sums), sum(high_sums)) : 0};
}

/// One entry after the other, those that reach a threshold.
void list_best_in_order(const float* logits, int64_t count, int64_t first_id, Lanes lanes_max,
                        HeadBlockStats* stats) {
  BestEntries best{stats, logits, first_id, top_threshold(lanes_max)};
  for (int64_t i = 0; i < count; i += 16) {
    const int64_t left = count - i;
    const Lanes v = left >= 16 ? load(logits + i) : load(logits + i, first_lanes(left));
    const uint32_t reaching = compare_bits(v, set_lanes(best.threshold), true);
    take_reaching(best, reaching & first_bits(left), i);
  }
}

/// Lists the best of a whole block without NaN: a few entries reach the threshold, and each one's
/// place is how many of them are before it, so that no branch depends on their order. Returns false
/// where they are too many (equal logits).
bool list_best_by_place(const float* logits, int64_t first_id, Lanes lanes_max,
                        const ChunkMaxima& chunks, HeadBlockStats* stats) {
  const Lanes threshold = set_lanes(top_threshold(lanes_max));
  uint32_t reaching = 0;
  for (int c = 0; c < kHeadBlock / kChunk; ++c) {
    const __m256 reach = _mm256_cmp_ps(_mm256_load_ps(chunks.at[c]), threshold.low, _CMP_GE_OQ);
    reaching |= uint32_t{_mm256_movemask_ps(reach) != 0} << c;
  }
  Candidates found;
  for (; reaching != 0; reaching &= reaching - 1) {
    const int first = kChunk * __builtin_ctz(reaching);
    uint32_t bits = compare_bits(load(logits + first), threshold, true) |
                    compare_bits(load(logits + first + 16), threshold, true) << 16;
    for (; bits != 0; bits &= bits - 1) {
      const int i = first + __builtin_ctz(bits);
      found.values[found.count] = logits[i];
      found.ids[found.count++] = static_cast<int32_t>(first_id + i);
    }
    if (found.count > kMaxCandidates) return false;
  }
  store(found.values + found.count, minus_infinity());
  store(found.values + found.count + 16, minus_infinity());
  const Lanes low = load(found.values);
  const Lanes high = load(found.values + 16);
  for (int i = 0; i < found.count; ++i) {
    const Lanes v = set_lanes(found.values[i]);
    found.put(i, compare_bits(low, v, false) | compare_bits(high, v, false) << 16,
              compare_bits(low, v, true) | compare_bits(high, v, true) << 16);
  }
  found.give(stats);
  return true;
}

/// The head's exponential, of kExpStatisticsLow <= x <= 0. `words`: kExp2Words.
VITRINE_INLINE __m256 exp_statistics(__m256 x, __m256i words) {
  const __m256 magic = _mm256_set1_ps(kRoundMagic8);
  const __m256 log2e = _mm256_set1_ps(kLog2E);
  const __m256 rounded = _mm256_fmadd_ps(x, log2e, magic);
  const __m256 f = _mm256_fmsub_ps(x, log2e, _mm256_sub_ps(rounded, magic));
  const __m256i bits = _mm256_castps_si256(rounded);
  const __m256 power = _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_permutevar8x32_epi32(words, bits), _mm256_slli_epi32(bits, 20)));
  __m256 q = _mm256_fmadd_ps(_mm256_set1_ps(kExp2D3), f, _mm256_set1_ps(kExp2D2));
  q = _mm256_fmadd_ps(q, f, _mm256_set1_ps(kExp2D1));
  return _mm256_fmadd_ps(_mm256_mul_ps(q, f), power, power);
}

/// Sums of exp(logit - max) and exp(logit - max) * (logit - max). `kClose`: FirstPass::is_close.
template <bool kClose>
void add_exponentials(const float* logits, int64_t count, HeadBlockStats* stats, const char* next) {
  const __m256i words = _mm256_load_si256(reinterpret_cast<const __m256i*>(kExp2Words.at));
  const Lanes low = set_lanes(kExpStatisticsLow);
  const Lanes largest = set_lanes(stats->max);
  Lanes sum_exp = set_lanes(0.0f);
  Lanes sum_exp_logit = set_lanes(0.0f);
  const auto add_all = [&](Lanes distance) __attribute__((always_inline)) {
    const Lanes e{exp_statistics(distance.low, words), exp_statistics(distance.high, words)};
    sum_exp = add(sum_exp, e);
    sum_exp_logit = fma(e, distance, sum_exp_logit);
  };
  const auto add_some = [&](Lanes distance, Mask mask) __attribute__((always_inline)) {
    const Lanes exp_before = sum_exp;
    const Lanes exp_logit_before = sum_exp_logit;
    add_all(distance);
    sum_exp = blend(exp_before, sum_exp, mask);
    sum_exp_logit = blend(exp_logit_before, sum_exp_logit, mask);
  };
  int64_t i = 0;
#pragma GCC unroll 2
  for (; i + 16 <= count; i += 16) {
    if (next != nullptr) {
      fetch(next + 8 * i);
      fetch(next + 8 * i + 64);
    }
    const Lanes distance = sub(load(logits + i), largest);
    if constexpr (kClose) {
      add_all(distance);
    } else {
      add_some(distance, not_below(distance, low));
    }
  }
  if (i < count) {
    const Mask mask = first_lanes(count - i);
    const Lanes distance = sub(load(logits + i, mask), largest);
    add_some(distance, both(mask, not_below(distance, low)));
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
  const bool scale = multiplier != 1.0f;
  if (!is_whole) {
    found = find_extremes(logits, count, multiplier);
    if (statistics) found.hash = hash_logits(logits, count);
  } else if (statistics) {
    found = scale ? find_extremes_of_block<true, true>(logits, multiplier, &chunks, first_lines)
                  : find_extremes_of_block<false, true>(logits, multiplier, &chunks, first_lines);
  } else {
    found = scale ? find_extremes_of_block<true, false>(logits, multiplier, &chunks, first_lines)
                  : find_extremes_of_block<false, false>(logits, multiplier, &chunks, first_lines);
  }
  const float max = max_lanes(found.largest);
  *stats = {.max = max, .hash = found.hash};
  const bool is_masked = max == -__builtin_inff();  // nothing but masked logits, or NaN
  if (!found.has_nan && statistics && !is_masked) {
    if (found.is_close(max)) {
      add_exponentials<true>(logits, count, stats, more_lines);
    } else {
      add_exponentials<false>(logits, count, stats, more_lines);
    }
  }
  // Among a chunk's entries a NaN hides others, perhaps all; a sum that is NaN has met one, or
  // +inf.
  if (is_whole && (is_masked || stats->sum_exp != stats->sum_exp)) {
    found.has_nan = find_extremes(logits, count, 1.0f).has_nan;
  }
  if (found.has_nan) stats->max = stats->sum_exp = stats->sum_exp_logit = __builtin_nanf("");
  // Behind the sums, whose arithmetic goes on while a branch in here was mispredicted.
  if (!is_whole || found.has_nan ||
      !list_best_by_place(logits, begin, found.largest, chunks, stats)) {
    list_best_in_order(logits, count, begin, found.largest, stats);
  }
}

}  // namespace vitrine::kernels::avx2
