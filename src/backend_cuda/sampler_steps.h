// SPDX-License-Identifier: Apache-2.0
// A choice's steps, from what a sampler pipeline says to what the kernel reads.
#pragma once

#include <span>

#include "kernels/cuda/sample/sample.h"
#include "sample/device_steps.h"

namespace vitrine::backend_cuda {

/// Ids that the edits of one row may have.
inline constexpr int64_t kMaxEditedIds = 4096;

/// Words that a row's edits and masks take, at most.
constexpr int64_t most_sampler_words(int64_t vocab) {
  return 2 * kMaxEditedIds + 2 * ((vocab + 31) / 32);
}

/// Whether the kernel takes them: edits and masks ahead of all others (so do the default order and
/// most others), no more steps, ids and masks than there is room for.
bool kernel_takes(std::span<const DeviceSamplerStep> steps);

/// Words of their ids, values and masks.
int64_t sampler_words(std::span<const DeviceSamplerStep> steps);

/// Writes them to `out` [kMaxSampleSteps], and their ids, values and masks to `words` from `first`
/// on. Returns the first word behind. Expects kernel_takes().
int64_t pack_steps(std::span<const DeviceSamplerStep> steps, int64_t first,
                   kernels::cuda::SampleStep* out, int32_t* words);

/// The steps of `choices` tokens, kKeep for those that have none; returns the first word behind
/// what they point to.
int64_t write_steps(std::span<const DeviceSamplerSteps* const> row_steps, int32_t choices,
                    int64_t first, kernels::cuda::SampleStep* out, int32_t* words);

/// Sets those to null that the kernel does not take, or for which `words` leave no room (below 0:
/// no step at all is taken). Returns whether all stayed.
bool keep_takeable(std::span<const DeviceSamplerSteps*> row_steps, int64_t words);

}  // namespace vitrine::backend_cuda
