// SPDX-License-Identifier: Apache-2.0
#include "backend_torch/readback.h"

#include <ATen/ATen.h>

#include <cstring>
#include <string>

#include "vitrine/core.h"

namespace vitrine::backend_torch {

void read_back(ops::Readback& readback, float* destination, const at::Tensor& source,
               int64_t count) {
  readback.note();
  if (source.numel() != count || source.scalar_type() != at::kFloat) {
    throw Error(ErrorKind::kInternal, "a readback of " + std::to_string(source.numel()) +
                                          " values was expected to have " + std::to_string(count));
  }
  const at::Tensor host = source.to(at::kCPU).contiguous();  // the one readback of a pass
  std::memcpy(destination, host.data_ptr<float>(), static_cast<size_t>(count) * sizeof(float));
}

}  // namespace vitrine::backend_torch
