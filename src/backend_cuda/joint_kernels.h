// SPDX-License-Identifier: Apache-2.0
// A federation's joint on the device: where a step's parts of it lie, and its launches. The rows
// may be of one model's step, or of several models'.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backend_cuda/device_runtime.h"
#include "engine/run/device_joint.h"
#include "kernels/cuda/federation/joint.h"
#include "kernels/cuda/head/head.h"
#include "kernels/cuda/sample/sample.h"

namespace vitrine::backend_cuda {

/// Addresses of a step's parts, on the device or, of the same copies, on the host.
struct JointMemory {
  int32_t joints = 0;  // rows, with those that fill a shape up; 0: none is made
  bool samples = false;
  // To the device.
  const float** sources = nullptr;             // [row_width] where each specialist's rows begin
  int32_t* rows = nullptr;                     // [joints, row_width] which of them
  int32_t* targets = nullptr;                  // [joints]
  kernels::cuda::SampleStep* steps = nullptr;  // [joints, kMaxSampleSteps] where it samples
  int32_t* words = nullptr;                    // what steps point to
  // Back.
  int32_t* chosen_ids = nullptr;  // [joints]
  float* choice_facts = nullptr;  // [joints, kSampleFacts] where it samples
  int32_t* records = nullptr;     // [joints, kJointRecordWords]
  double* values = nullptr;       // [joints, DeviceJointSpec::num_values]
  float* logits = nullptr;        // [joints, vocabulary] log-probabilities
};

/// Sizes of the parts that hang on the joint alone, in words, and their places.
class JointLayout {
 public:
  JointLayout() = default;  // of a model that makes none: 0 words
  explicit JointLayout(const engine::DeviceJointSpec& spec)
      : width_(spec.row_width()), values_(spec.num_values()), max_joints_(spec.max_rows) {}

  int32_t max_joints() const { return max_joints_; }
  int64_t values() const { return values_; }
  int64_t source_words() const;
  int64_t input_words(int32_t joints) const;   // sources, rows, targets
  int64_t result_words(int32_t joints) const;  // records, values
  /// At multiples of 8 bytes.
  void place(JointMemory& memory, int32_t* in, int32_t* out) const;
  /// A step's inputs; what fills the shape up are copies of its first row. `sources`: [row_width].
  void write(const engine::DeviceJointStep& step, std::span<const float* const> sources,
             const JointMemory& memory) const;

 private:
  int64_t width_ = 0, values_ = 0;
  int32_t max_joints_ = 0;
};

/// What the kernels of a joint keep on the device from step to step; not owned.
struct JointScratch {
  kernels::cuda::JointSum* sums = nullptr;     // [joint_sums]
  kernels::cuda::HeadBlock* blocks = nullptr;  // [joint_blocks]
  const float* gate = nullptr;                 // [specialists, hidden], of a gate
  const float* bias = nullptr;                 // [specialists]
};
int64_t joint_sums_bytes(const engine::DeviceJointSpec& spec, int64_t vocab);
int64_t joint_blocks_bytes(const engine::DeviceJointSpec& spec, int64_t vocab);

/// One launch of a joint, or several of one launcher.
struct JointLaunch {
  std::string what;
  bool samples = false;  // part of steps that sample alone
  std::function<Status(const JointMemory&, Stream)> start;
};
/// In their order: the rows of the joint, their statistics and best tokens, a sampler's choices,
/// what each specialist says of the tokens.
std::vector<JointLaunch> joint_launches(const engine::DeviceJointSpec& spec, int64_t vocab,
                                        const JointScratch& scratch);

}  // namespace vitrine::backend_cuda
