// SPDX-License-Identifier: Apache-2.0
// Which devices this process can use. The CUDA backend is a shared library of its own, loaded when
// a CUDA device is asked for, so that a CPU process never maps libtorch_cuda.
#pragma once

#include <memory>

#include "vitrine/core.h"

namespace vitrine::engine {

class DeviceJoint;
class DeviceModel;
struct DeviceJointSpec;
struct DeviceModelInputs;

/// Loads the CUDA backend. Throws kUnavailable where it or the device is not here.
void require_cuda_device(const Device& device);

/// Makes a model on that device, which runs on the fused kernels of its backend. Throws
/// kUnavailable where the device or its kernels are not here, and what the backend throws.
std::unique_ptr<DeviceModel> make_device_model(const Device& device,
                                               const DeviceModelInputs& inputs);

/// Makes a joint of rows of models on that device, over a vocabulary of so many tokens. Throws as
/// make_device_model() does.
std::unique_ptr<DeviceJoint> make_device_joint(const Device& device, const DeviceJointSpec& spec,
                                               int64_t vocab);

}  // namespace vitrine::engine
