// Which devices this process can use. The CUDA backend is a shared library of its own, loaded when a
// CUDA device is asked for, so that a CPU process never maps libtorch_cuda.
#pragma once

#include <c10/core/Device.h>

#include "vitrine/core.h"

namespace vitrine::engine {

/// Loads what the device needs. Throws kUnavailable where it is not here.
c10::Device torch_device(const Device& device);

}  // namespace vitrine::engine
