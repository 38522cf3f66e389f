// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/fused_model.h"

#include <algorithm>
#include <utility>

#include "backend_cuda/read_bandwidth.h"

namespace vitrine::backend_cuda {

FusedModel::FusedModel(std::unique_ptr<DeviceRuntime> runtime,
                       const engine::DeviceModelInputs& inputs)
    : runtime_(checked(std::move(runtime))),
      heads_(static_cast<int32_t>(inputs.graph.num_heads)),
      kv_heads_(static_cast<int32_t>(inputs.graph.num_kv_heads)),
      plan_(*runtime_, inputs),
      buffers_(*runtime_, inputs.graph, inputs.layout, inputs.options, inputs.kv_type,
               inputs.joint) {}

void FusedModel::load() { plan_.upload(); }

StepGraph& FusedModel::graph_of(const StepShape& shape) {
  std::unique_ptr<StepGraph>& graph = graphs_[shape];
  if (graph != nullptr) return *graph;
  const StepMemory memory = buffers_.on_device(shape);
  check(runtime_->begin_capture(), "recording a step");
  try {
    plan_.launch(memory, runtime_->stream());
  } catch (...) {
    std::unique_ptr<StepGraph> unfinished;
    static_cast<void>(runtime_->end_capture(&unfinished));
    graphs_.erase(shape);
    throw;
  }
  const Status status = runtime_->end_capture(&graph);
  if (!status.ok()) {
    graphs_.erase(shape);
    check(status, "recording a step");
  }
  return *graph;
}

PackedStep FusedModel::pack(const engine::StepBatch& batch, int32_t lane, StepPart part) {
  StepShape shape = buffers_.shape_of(batch);
  shape.lane = lane;
  if (shape.rows > 0) shape.part = part;  // without rows nothing lies behind a choice
  return buffers_.pack(batch, shape, heads_, kv_heads_);
}

void FusedModel::start(const engine::StepBatch& batch, const PackedStep& step) {
  StepGraph& graph = graph_of(step.shape);
  kernels_per_step_ = graph.num_kernels();
  buffers_.send(step);
  check(runtime_->launch(graph), "starting a step");
  buffers_.start_read_back(batch, step);
}

engine::DevicePass FusedModel::run(const engine::StepBatch& batch) {
  const std::optional<PackedStep> ahead = std::exchange(ahead_, std::nullopt);
  PackedStep step = pack(batch, lane_);  // the last step's inputs are not read any more
  const auto tokens = static_cast<int64_t>(batch.token_ids.size());
  if (ahead && buffers_.is_same(step, *ahead, tokens)) {
    step = *ahead;
    ++steps_ahead_;
  } else {
    if (lane_ != 0) step = pack(batch, 0);
    start(batch, step);
  }
  lane_ = step.shape.lane;
  std::optional<PackedStep> next;
  if (batch.next != nullptr && buffers_.takes_ahead(*batch.next)) {
    try {
      next = pack(*batch.next, 1 - lane_);
      start(*batch.next, *next);
    } catch (const Error&) {
      next.reset();  // where it is asked for, it is started again, and says what is wrong
    }
  }
  if (batch.meanwhile != nullptr) batch.meanwhile->run_meanwhile();
  const engine::DevicePass pass = buffers_.receive(step);
  ahead_ = next;
  return pass;
}

engine::DevicePass FusedModel::run_to_choice(const engine::StepBatch& batch) {
  ahead_.reset();  // whoever chooses in between leads none on
  lane_ = 0;
  PackedStep step = pack(batch, 0, StepPart::kToChoice);
  if (!batch.row_tokens.empty()) step.audit = false;  // the second part brings the records
  start(batch, step);
  if (batch.meanwhile != nullptr) batch.meanwhile->run_meanwhile();
  begun_ = buffers_.receive(step);
  return begun_;
}

engine::DevicePass FusedModel::run_from_choice(const engine::StepBatch& batch) {
  if (batch.row_tokens.empty()) return begun_;  // nothing to choose, no graph behind it
  PackedStep step = pack(batch, 0, StepPart::kBehindChoice);
  step.read_logits = step.read_hidden_states = false;
  start(batch, step);
  return buffers_.receive(step);
}

void FusedModel::copy_block(int32_t from, int32_t to) {
  // What was started ahead may have written to that block, which was nobody's yet.
  ahead_.reset();
  const KvPlanes planes = plan_.kv_planes();
  check(runtime_->copy_on_device(planes.first + static_cast<size_t>(to) * planes.block_bytes,
                                 planes.first + static_cast<size_t>(from) * planes.block_bytes,
                                 planes.block_bytes, planes.stride, planes.count),
        "copying a KV block");
}

std::optional<double> FusedModel::measure_read_bandwidth(double seconds) {
  ahead_.reset();  // lane 0 reads back for the measurement
  return backend_cuda::measure_read_bandwidth(*runtime_, seconds);
}

engine::DeviceMemoryUse FusedModel::memory_use() const {
  engine::DeviceMemoryUse use = plan_.memory_use();
  use.activations += buffers_.num_bytes();
  return use;
}

}  // namespace vitrine::backend_cuda
