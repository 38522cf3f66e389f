// SPDX-License-Identifier: Apache-2.0
// A model's graph as launches of CUDA kernels over device memory that is given once.
#pragma once

#include "backend_cuda/plan_builder.h"

namespace vitrine::backend_cuda {

/// The launches of a graph's nodes, each planned by its op (cuda_op.h).
class FusedPlan {
 public:
  FusedPlan(DeviceRuntime& runtime, const engine::DeviceModelInputs& inputs);

  /// Starts every kernel of a step of that shape on the stream. Throws kInternal.
  void launch(const StepMemory& memory, Stream stream) const;

  /// Packs and copies the weights.
  void upload() { builder_.weights().upload(); }
  const std::vector<PlanEntry>& entries() const { return builder_.entries(); }
  KvPlanes kv_planes() const { return builder_.kv_planes(); }
  /// What the plan takes of the device's memory, but for a step's own buffers.
  engine::DeviceMemoryUse memory_use() const {
    return {builder_.weights().num_bytes(), builder_.kv_bytes(), builder_.activation_bytes()};
  }

 private:
  PlanBuilder builder_;
};

}  // namespace vitrine::backend_cuda
