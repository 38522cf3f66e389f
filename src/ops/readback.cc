// SPDX-License-Identifier: Apache-2.0
#include "ops/readback.h"

#include <ATen/ATen.h>

#include <cstring>

#include "vitrine/core.h"

namespace vitrine::ops {

void Readback::copy(void* destination, const void* source, size_t bytes) {
  ++count_;
  std::memcpy(destination, source, bytes);
}

void Readback::copy(float* destination, const at::Tensor& source, int64_t count) {
  ++count_;
  if (source.numel() != count || source.scalar_type() != at::kFloat) {
    throw Error(ErrorKind::kInternal, "a readback of " + std::to_string(source.numel()) +
                                          " values was expected to have " + std::to_string(count));
  }
  const at::Tensor host = source.to(at::kCPU).contiguous();  // the one readback of a pass
  std::memcpy(destination, host.data_ptr<float>(), static_cast<size_t>(count) * sizeof(float));
}

}  // namespace vitrine::ops
