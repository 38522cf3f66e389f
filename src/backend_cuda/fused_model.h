// A model on a device: its plan, its graphs, its steps.
#pragma once

#include <map>
#include <memory>

#include "backend_cuda/fused_plan.h"

namespace vitrine::backend_cuda {

class FusedModel final : public engine::DeviceModel {
 public:
  FusedModel(std::unique_ptr<DeviceRuntime> runtime, const engine::DeviceModelInputs& inputs);

  void load() override;
  engine::DevicePass run(const engine::StepBatch& batch) override;
  void copy_block(int32_t from, int32_t to) override;
  bool take_steps(std::span<const DeviceSamplerSteps*> row_steps) const override {
    return buffers_.take_steps(row_steps);
  }
  const std::vector<PlanEntry>& plan() const override { return plan_.entries(); }
  engine::DeviceMemoryUse memory_use() const override;

  /// Kernels of the last step's graph; 0 before the first.
  int64_t kernels_per_step() const { return kernels_per_step_; }
  /// Graphs that were recorded so far, one a shape.
  size_t num_graphs() const { return graphs_.size(); }

 private:
  StepGraph& graph_of(const StepShape& shape);

  std::unique_ptr<DeviceRuntime> runtime_;  // first: it outlives all memory
  int32_t heads_, kv_heads_;
  FusedPlan plan_;
  StepBuffers buffers_;
  std::map<StepShape, std::unique_ptr<StepGraph>> graphs_;
  int64_t kernels_per_step_ = 0;
};

}  // namespace vitrine::backend_cuda
