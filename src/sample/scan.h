// SPDX-License-Identifier: Apache-2.0
// Passes over a whole vocabulary, in the widest registers that the machine has. Maxima and
// comparisons are exact and sums have a fixed order: the same bits whichever form runs.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace vitrine {

inline constexpr size_t kScanLanes = 8;
inline constexpr size_t kScanBlock = 512;  ///< logits of a block; lane l has those at l modulo 8

inline constexpr size_t scan_blocks(size_t count) { return (count + kScanBlock - 1) / kScanBlock; }

/// lane_maxima [scan_blocks x kScanLanes]: the largest logit of each lane of each block, -infinity
/// where it has none. False where a logit is NaN or +infinity; then the maxima mean nothing.
bool scan_logits(std::span<const float> logits, float* lane_maxima);

/// The largest one, or -infinity. NaN is not among them.
float largest_of(std::span<const float> logits);

/// True where each of them is a number and none is infinite.
bool are_finite(std::span<const float> logits);

/// results[i] = e^(logits[i] - largest); returns their sum, added in eight lanes by index modulo 8
/// and then lane by lane. No logit is above `largest`.
double exponentials(std::span<const float> logits, float largest, double* results);

/// Returns log(sum of e^(logits[i] - largest)), summed by blocks, whose bits are the same on every
/// machine: what every log-probability of a row is made of. `largest` is the largest of them.
double log_sum_beside(std::span<const float> logits, float largest);

/// What this machine can run of the portable, the AVX2 and the AVX-512 form; the last one runs.
struct ScanForms {
  bool (*scan)(std::span<const float>, float*);
  float (*largest)(std::span<const float>);
  bool (*finite)(std::span<const float>);
  double (*exponentials)(std::span<const float>, float, double*);
};
std::vector<ScanForms> scan_forms();

}  // namespace vitrine
