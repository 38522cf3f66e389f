// SPDX-License-Identifier: Apache-2.0
// A libvitrine_cuda.so over the emulator: whole engines run on `--device cuda --kernels fused`
// where there is no GPU.
#include "backend_cuda/fused_model.h"
#include "backend_cuda/joint_model.h"
#include "tests/cuda/emulator/emulated_runtime.h"

namespace {

constexpr size_t kMemory = size_t{1} << 30;

vitrine::kernels::cuda::emulator::Traffic& traffic() {
  static vitrine::kernels::cuda::emulator::Traffic all;
  return all;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int vitrine_cuda_device_count(
    const char** problem) noexcept {
  *problem = "";
  return 1;
}

extern "C" __attribute__((visibility("default"))) vitrine::engine::DeviceModel*
vitrine_cuda_make_model(const vitrine::engine::DeviceModelInputs& inputs, int /*device*/) {
  return std::make_unique<vitrine::backend_cuda::FusedModel>(
             std::make_unique<vitrine::kernels::cuda::emulator::TestRuntime>(kMemory, traffic()),
             inputs)
      .release();
}

extern "C" __attribute__((visibility("default"))) vitrine::engine::DeviceJoint*
vitrine_cuda_make_joint(const vitrine::engine::DeviceJointSpec& spec, int64_t vocab,
                        int /*device*/) {
  return std::make_unique<vitrine::backend_cuda::JointModel>(
             std::make_unique<vitrine::kernels::cuda::emulator::TestRuntime>(kMemory, traffic()),
             spec, vocab)
      .release();
}

/// Steps that were started so far.
extern "C" __attribute__((visibility("default"))) int64_t vitrine_emulated_steps() {
  return traffic().graph_launches;
}

/// Bytes that were read back so far.
extern "C" __attribute__((visibility("default"))) size_t vitrine_emulated_bytes_to_host() {
  return traffic().bytes_to_host;
}
