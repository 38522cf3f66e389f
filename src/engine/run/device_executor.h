// SPDX-License-Identifier: Apache-2.0
// The fused path on a device other than the CPU: a backend's model behind the engine's interface.
#pragma once

#include <functional>
#include <memory>

#include "engine/run/device_model.h"

namespace vitrine::engine {

using DeviceModelFactory =
    std::function<std::unique_ptr<DeviceModel>(const DeviceModelInputs& inputs)>;

/// Throws kUnsupported for an option that needs another path, and what the factory throws.
std::unique_ptr<Executor> make_device_executor(const ExecutorInputs& inputs,
                                               const DeviceModelFactory& make_model);

/// Does the same with the backend of the options' device. Throws kUnavailable where it is not here.
std::unique_ptr<Executor> make_device_executor(const ExecutorInputs& inputs);

}  // namespace vitrine::engine
