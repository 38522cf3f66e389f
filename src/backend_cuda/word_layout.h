// SPDX-License-Identifier: Apache-2.0
// How the parts of a step's memory lie behind one another, on both sides, in words of 32 bits.
#pragma once

#include <cstdint>

#include "kernels/cuda/sample/sample.h"

namespace vitrine::backend_cuda {

/// Up to where the next part may begin: at a multiple of 256 bytes.
constexpr int64_t aligned(int64_t words) {
  constexpr int64_t kAlignWords = 64;
  return (words + kAlignWords - 1) / kAlignWords * kAlignWords;
}

/// Words of the sampler's steps that choose one token.
inline constexpr int64_t kChoiceStepWords = kernels::cuda::kMaxSampleSteps *
                                            int64_t{sizeof(kernels::cuda::SampleStep)} /
                                            int64_t{sizeof(int32_t)};

/// Words that come back of one choice: its id, and where it was sampled the sampler's facts.
constexpr int64_t choice_words(bool samples) {
  return 1 + (samples ? kernels::cuda::kSampleFacts : 0);
}

}  // namespace vitrine::backend_cuda
