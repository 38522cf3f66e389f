// SPDX-License-Identifier: Apache-2.0
// A joint of rows that several models of one device made: its own stream, graphs and buffers.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "backend_cuda/joint_kernels.h"
#include "engine/run/device_model.h"

namespace vitrine::backend_cuda {

/// The models' passes must have ended, and none may begin while run() is under way.
class JointModel final : public engine::DeviceJoint {
 public:
  JointModel(std::unique_ptr<DeviceRuntime> runtime, const engine::DeviceJointSpec& spec,
             int64_t vocab);

  engine::DeviceJointResult run(const engine::DeviceJointStep& step,
                                std::span<const float* const> sources) override;
  bool keep_choosable(std::span<const DeviceSamplerSteps*> row_steps) const override;
  uint64_t num_bytes() const override;

 private:
  JointMemory at(int32_t joints, bool samples, std::byte* in, std::byte* out) const;
  StepGraph& graph_of(const JointMemory& device);
  const float* upload(const std::vector<float>& values);

  std::unique_ptr<DeviceRuntime> runtime_;  // first: it outlives all memory
  JointLayout layout_;
  int64_t vocab_, sampler_words_;
  bool samples_;
  std::vector<DeviceBuffer> constants_;
  DeviceBuffer sums_, blocks_, device_in_, device_out_;
  HostBuffer host_in_, host_out_;
  std::vector<JointLaunch> launches_;
  std::map<std::pair<int32_t, bool>, std::unique_ptr<StepGraph>> graphs_;  // by rows and samples
};

}  // namespace vitrine::backend_cuda
