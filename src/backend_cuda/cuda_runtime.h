// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime of one device.
#pragma once

#include <memory>

#include "backend_cuda/device_runtime.h"

namespace vitrine::backend_cuda {

/// Throws kInternal where the device refuses a stream.
std::unique_ptr<DeviceRuntime> make_cuda_runtime(int device);

}  // namespace vitrine::backend_cuda
