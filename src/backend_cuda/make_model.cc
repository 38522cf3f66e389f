// SPDX-License-Identifier: Apache-2.0
// What the engine looks up for the fused path on CUDA.
#include "backend_cuda/cuda_runtime.h"
#include "backend_cuda/fused_model.h"
#include "backend_cuda/joint_model.h"

/// A model on CUDA device `device`, which must be there; the caller deletes it. Throws
/// vitrine::Error as engine::DeviceModel says.
extern "C" __attribute__((visibility("default"))) vitrine::engine::DeviceModel*
vitrine_cuda_make_model(const vitrine::engine::DeviceModelInputs& inputs, int device) {
  return std::make_unique<vitrine::backend_cuda::FusedModel>(
             vitrine::backend_cuda::make_cuda_runtime(device), inputs)
      .release();
}

/// Makes a joint of rows that models on this device leave there.
extern "C" __attribute__((visibility("default"))) vitrine::engine::DeviceJoint*
vitrine_cuda_make_joint(const vitrine::engine::DeviceJointSpec& spec, int64_t vocab, int device) {
  return std::make_unique<vitrine::backend_cuda::JointModel>(
             vitrine::backend_cuda::make_cuda_runtime(device), spec, vocab)
      .release();
}
