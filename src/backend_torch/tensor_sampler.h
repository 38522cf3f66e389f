// SPDX-License-Identifier: Apache-2.0
// A sampler pipeline's steps as tensor operations, so that a choice is made where the logits are
// and only it is read back.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "sample/device_steps.h"

namespace vitrine::backend_torch {

/// What was chosen for one row, on the logits' device.
struct TensorChoice {
  at::Tensor id;     // [1] int64; below 0: why there is none (engine/run/executor.h)
  at::Tensor facts;  // [engine::kChoiceFacts] float32
};

/// `logits`: [vocabulary] float32. Reads nothing back.
TensorChoice choose_with_tensors(const at::Tensor& logits,
                                 std::span<const DeviceSamplerStep> steps);

}  // namespace vitrine::backend_torch
