// SPDX-License-Identifier: Apache-2.0
// Devices as libtorch knows them.
#pragma once

#include <ATen/Context.h>
#include <c10/core/Device.h>

#include <optional>

#include "vitrine/core.h"

namespace vitrine::backend_torch {

/// Starts what libtorch needs for it; of CUDA the backend is loaded already. Throws kUnavailable
/// where libtorch lacks the device.
c10::Device torch_device(const Device& device);

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

}  // namespace vitrine::backend_torch
