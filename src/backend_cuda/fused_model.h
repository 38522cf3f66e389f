// SPDX-License-Identifier: Apache-2.0
// A model on a device: its plan, its graphs, its steps.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "backend_cuda/fused_plan.h"

namespace vitrine::backend_cuda {

class FusedModel final : public engine::DeviceModel {
 public:
  FusedModel(std::unique_ptr<DeviceRuntime> runtime, const engine::DeviceModelInputs& inputs);

  void load() override;
  engine::DevicePass run(const engine::StepBatch& batch) override;
  engine::DevicePass run_to_choice(const engine::StepBatch& batch) override;
  engine::DevicePass run_from_choice(const engine::StepBatch& batch) override;
  void copy_block(int32_t from, int32_t to) override;
  bool keep_choosable(std::span<const DeviceSamplerSteps*> row_steps) const override {
    return buffers_.keep_choosable(row_steps);
  }
  const std::vector<PlanEntry>& plan() const override { return plan_.entries(); }
  engine::DeviceMemoryUse memory_use() const override;
  std::optional<double> measure_read_bandwidth(double seconds) override;

  /// Kernels of the last started step's graph; 0 before the first.
  int64_t kernels_per_step() const { return kernels_per_step_; }
  /// Steps that had been started ahead when they were asked for, so far.
  int64_t steps_ahead() const { return steps_ahead_; }
  /// Graphs that were recorded so far, one a shape.
  size_t num_graphs() const { return graphs_.size(); }

 private:
  StepGraph& graph_of(const StepShape& shape);
  PackedStep pack(const engine::StepBatch& batch, int32_t lane, StepPart part = StepPart::kWhole);
  void start(const engine::StepBatch& batch, const PackedStep& step);

  std::unique_ptr<DeviceRuntime> runtime_;  // first: it outlives all memory
  int32_t heads_, kv_heads_;
  FusedPlan plan_;
  std::map<StepShape, std::unique_ptr<StepGraph>> graphs_;
  StepBuffers buffers_;              // behind the graphs: it waits for what still runs
  int32_t lane_ = 0;                 // of the last step whose results were asked for
  std::optional<PackedStep> ahead_;  // started in the other lane
  engine::DevicePass begun_;         // of the step whose first part has run
  int64_t kernels_per_step_ = 0, steps_ahead_ = 0;
};

}  // namespace vitrine::backend_cuda
