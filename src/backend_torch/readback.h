// SPDX-License-Identifier: Apache-2.0
// The one way from a device to the host on the reference path.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "ops/readback.h"

namespace vitrine::backend_torch {

/// A contiguous float32 tensor on any device to host memory of `count` floats; counted.
void read_back(ops::Readback& readback, float* destination, const at::Tensor& source,
               int64_t count);

}  // namespace vitrine::backend_torch
