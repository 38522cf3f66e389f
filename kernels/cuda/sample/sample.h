// SPDX-License-Identifier: Apache-2.0
// A token for each row, chosen where the logits are: the steps that SamplerPipeline::device_steps
// lists.
#pragma once

#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

/// One step over a row of logits; w is the softmax of what is left, ties count by lower id.
struct SampleStep {
  enum class Kind : int64_t {  // of 64 bits, as all fields: nothing between them is left unset
    kKeep,                     ///< alone: what was chosen before stands
    kAdd,       ///< logits[ids[i]] += values[i]; edits and masks come before all others
    kPenalise,  ///< logits[ids[i]]: / a where 0 or more, * a below; then - values[i]
    kMask,      ///< rules out ids whose bit is not set
    kDivide,    ///< logits / a (less the largest, where the quotient would leave float's range)
    kDynamicTemperature,  ///< / a + (b - a) * (entropy / ln(tokens left))^c
    kTopNSigma,           ///< keeps logits at most a standard deviations below the best
    kTopK,                ///< keeps the a best
    kTypicalP,            ///< keeps the smallest set nearest to the entropy with sum(w) >= a
    kTopP,                ///< keeps the smallest set of the best with sum(w) >= a
    kMinP,                ///< keeps logits at least the best + a
    kXtc,                 ///< of two and more with w >= a keeps the least probable one
    kDraw,                ///< chooses the first id at which the sum of w exceeds a; last
    kGreedy,              ///< chooses the best; last
  };
  Kind kind = Kind::kGreedy;
  double a = 0, b = 0, c = 0;
  int64_t first = 0;  ///< word at which an edit's ids begin, or a mask; behind ids their values
  int64_t count = 0;  ///< of the ids, each below the vocabulary, none twice
};

inline constexpr int kMaxSampleSteps = 16;
/// Facts about a row: tokens left (1 where it was certain), the chosen one's probability among
/// them, the probability that the mask took away, and 1 where the mask ruled out the first choice.
inline constexpr int kSampleFacts = 4;
/// In place of an id: a logit is NaN or +infinity; every one is -infinity.
inline constexpr int32_t kBrokenRow = -1, kEmptyRow = -2;

struct Sampling {
  int64_t vocab = 0;        ///< 1 to 2^22
  float* logits = nullptr;  ///< [rows, vocab] float32; edited while the kernel runs, then as before
  const SampleStep* steps =
      nullptr;                    ///< [rows, kMaxSampleSteps] on the device, up to a draw or greedy
  int32_t* words = nullptr;       ///< ids, values and masks of steps; values do not outlive it
  int32_t* chosen_ids = nullptr;  ///< [rows]
  float* facts = nullptr;         ///< [rows, kSampleFacts]
  /// Where the logit of row r's choice is recorded: records[r * record_stride]; null: nowhere.
  float* records = nullptr;
  int64_t record_stride = 0;
};

/// Probabilities are summed as integers (exp of the CPU kernels, times 2^40, cut off), and
/// deviations in one order, so that no order of threads shows; a draw at the edge of two tokens may
/// fall to another one than on the host.
Status sample_rows(const Sampling& sampling, int32_t rows, Stream stream);

}  // namespace vitrine::kernels::cuda
