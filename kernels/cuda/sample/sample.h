// A token for each row, chosen where the logits are: the steps that SamplerPipeline::device_steps
// lists, those that this kernel knows.
#pragma once

#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

/// One step over a row of logits; w is the softmax of what is left, ties count by lower id.
struct SampleStep {
  enum class Kind : int32_t {
    kDivide,  ///< logits / a (less the largest, where the quotient would leave float's range)
    kTopK,    ///< keeps the a best
    kTopP,    ///< keeps the smallest set of the best with sum(w) >= a
    kMinP,    ///< keeps logits at least the best + a
    kDraw,    ///< chooses the first id at which the sum of w exceeds a; last
    kGreedy,  ///< chooses the best; last
  };
  Kind kind = Kind::kGreedy;
  double a = 0;
};

inline constexpr int kMostSampleSteps = 8;
/// In place of an id: a logit is NaN or +infinity; every one is -infinity.
inline constexpr int32_t kBrokenRow = -1, kEmptyRow = -2;

struct Sampling {
  int64_t vocab = 0;              ///< 1 to 2^22
  const float* logits = nullptr;  ///< [rows, vocab] float32
  const SampleStep* steps =
      nullptr;  ///< [rows, kMostSampleSteps] on the device, up to a draw or greedy
  int32_t* chosen_ids = nullptr;  ///< [rows]
  float* facts = nullptr;         ///< [rows, 2]: tokens left (1 where it was certain), probability
};

/// Probabilities are summed as integers (exp of the CPU kernels, times 2^40, cut off), so that no
/// order of threads shows; a draw at the edge of two tokens may fall to another one than on the
/// host.
Status sample_rows(const Sampling& sampling, int32_t rows, Stream stream);

}  // namespace vitrine::kernels::cuda
