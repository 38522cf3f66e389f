// SPDX-License-Identifier: Apache-2.0
// From the host to a device, on the reference path.
#pragma once

#include <ATen/ATen.h>

#include <cstring>
#include <vector>

namespace vitrine::backend_torch {

/// [values.size()]. Pinned memory on CUDA, so that the copy does not wait for the device.
template <typename T>
at::Tensor upload(const std::vector<T>& values, at::ScalarType type, at::Device device) {
  at::Tensor host = at::empty({static_cast<int64_t>(values.size())},
                              at::TensorOptions().dtype(type).pinned_memory(device.is_cuda()));
  std::memcpy(host.data_ptr(), values.data(), values.size() * sizeof(T));
  return host.to(device, type, /*non_blocking=*/device.is_cuda());
}

}  // namespace vitrine::backend_torch
