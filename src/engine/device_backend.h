// SPDX-License-Identifier: Apache-2.0
// Which devices this process can use. The CUDA backend is a shared library of its own, loaded when
// a CUDA device is asked for, so that a CPU process never maps libtorch_cuda.
#pragma once

#include <ATen/Context.h>
#include <c10/core/Device.h>

#include <memory>
#include <optional>

#include "vitrine/core.h"

namespace vitrine::engine {

class DeviceJoint;
class DeviceModel;
struct DeviceJointSpec;
struct DeviceModelInputs;

/// Loads what the device needs. Throws kUnavailable where it is not here.
c10::Device torch_device(const Device& device);

/// A model on that device, by the fused kernels of its backend. Throws kUnavailable where the
/// device or its kernels are not here, and what the backend throws.
std::unique_ptr<DeviceModel> make_device_model(const Device& device,
                                               const DeviceModelInputs& inputs);

/// The same for a joint of rows of models on that device, over so many tokens.
std::unique_ptr<DeviceJoint> make_device_joint(const Device& device, const DeviceJointSpec& spec,
                                               int64_t vocab);

/// Float32 stays float32 while it lives: no TF32 in matrix products on CUDA. cuBLAS handles obey a
/// setting of this thread; cuBLASLt only reads the process's, so where the host has switched TF32
/// on for the process, that is switched off meanwhile and then on again. A process that has not, or
/// that runs on another device, is left as it is.
class Float32Guard {
 public:
  explicit Float32Guard(c10::Device device);
  ~Float32Guard();
  Float32Guard(const Float32Guard&) = delete;
  Float32Guard& operator=(const Float32Guard&) = delete;

 private:
  std::optional<at::NoTF32Guard> no_tf32_;
  bool restore_ = false;
};

}  // namespace vitrine::engine
