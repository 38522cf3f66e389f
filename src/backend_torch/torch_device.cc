// SPDX-License-Identifier: Apache-2.0
#include "backend_torch/torch_device.h"

#include <ATen/Context.h>

namespace vitrine::backend_torch {

c10::Device torch_device(const Device& device) {
  switch (device.kind) {
    case DeviceKind::kCpu: break;
    case DeviceKind::kCuda:
      at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
      return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device.index)};
    case DeviceKind::kMps:
      if (!at::hasMPS()) {
        throw Error(ErrorKind::kUnavailable,
                    "device 'mps' is not here: it needs an Apple GPU and a libtorch with MPS; use "
                    "--device cpu");
      }
      return {c10::DeviceType::MPS, 0};
  }
  return {c10::DeviceType::CPU};
}

Float32Guard::Float32Guard(c10::Device device) {
  if (!device.is_cuda()) return;
  no_tf32_.emplace();
  at::Context& context = at::globalContext();
  if (context.float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL) ==
      at::Float32Precision::TF32) {
    context.setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL,
                                at::Float32Precision::IEEE);
    restore_ = true;
  }
}

Float32Guard::~Float32Guard() {
  if (!restore_) return;
  at::globalContext().setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL,
                                          at::Float32Precision::TF32);
}

}  // namespace vitrine::backend_torch
