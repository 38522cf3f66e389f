// SPDX-License-Identifier: Apache-2.0
// How fast a device's memory is read.
#pragma once

#include <optional>

#include "backend_cuda/device_runtime.h"

namespace vitrine::backend_cuda {

/// Bytes a second, the best of the passes that begin within `seconds`, at least two: over memory of
/// its own, far more than a cache holds, that is given back. None where there is no room for it.
/// What runs on the device goes before it.
std::optional<double> measure_read_bandwidth(DeviceRuntime& runtime, double seconds);

}  // namespace vitrine::backend_cuda
