// SPDX-License-Identifier: Apache-2.0
// What changes from step to step, on both sides: one copy brings it to the device, one brings the
// results back. Where each part lies depends on the step's shape alone, so that a graph can be
// replayed.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

#include "backend_cuda/device_runtime.h"
#include "backend_cuda/joint_kernels.h"
#include "engine/run/device_model.h"
#include "kernels/cuda/attention/attention_mma.h"
#include "kernels/cuda/kv/rope_kv.h"
#include "kernels/cuda/sample/sample.h"

namespace vitrine::backend_cuda {

/// Where the host chooses in the middle of a step, it is two graphs.
enum class StepPart : uint8_t { kWhole, kToChoice, kBehindChoice };

/// The sizes that a graph is recorded for. A step has no more tokens, rows and ranges of attention;
/// what is missing is filled up with copies of its first token and row, which read no other weight,
/// write the same keys and values to the same place, and are not looked at.
struct StepShape {
  int32_t tokens = 0;
  int32_t rows = 0;  // 0: no logits
  int32_t ranges = 1;
  bool samples = false;   // some row is chosen by a sampler's steps
  bool forces = false;    // some token has forced routes
  bool branches = false;  // some drafts are a tree
  bool adapts = false;    // some token has an adapter
  int32_t lane = 0;       // which of the two places its results go to
  int32_t joints = 0;     // rows of a federation's joint; 0: none is made
  StepPart part = StepPart::kWhole;
  /// For so many a token is chosen.
  int32_t choices() const { return joints > 0 ? joints : rows; }
  auto operator<=>(const StepShape&) const = default;
};

/// Whether attention runs on tensor cores, which round queries and exponentials to 16 bits: where
/// activations are bf16, and keys, values and heads are such as the kernel takes.
bool attends_on_tensor_cores(const EngineOptions& options, DType kv_type, const ops::Graph& graph);

/// Whether steps may have a choice by a sampler's steps; what that takes is left out where not.
inline bool samples_on_device(const EngineOptions& options) {
  return options.sample_on_device.value_or(true);
}

/// How the step's tokens are chosen: those of its rows, or of a joint's.
std::span<const DeviceSamplerSteps* const> steps_of(const engine::StepBatch& batch);

/// Where a layer's forced routes begin in the words of a token: the ids of its slots, -1 where none
/// are forced, then their weights. Of the number of layers: a token's words.
int64_t forced_route_words(const AuditLayout& layout, int layer);

/// Addresses of one shape's parts, on the device or, of the same copies, on the host.
struct StepMemory {
  StepShape shape;
  kernels::cuda::AttentionQueries queries = kernels::cuda::AttentionQueries::k8;
  kernels::cuda::MmaRows mma_rows = kernels::cuda::MmaRows::k16;  // on tensor cores in its place
  int64_t table_stride = 0;
  // To the device.
  int32_t* token_ids = nullptr;                   // [tokens]
  int32_t* positions = nullptr;                   // [tokens]
  int32_t* sequences = nullptr;                   // [tokens] rows of `tables`
  int32_t* adapters = nullptr;                    // [tokens] -1: none
  int32_t* row_tokens = nullptr;                  // [rows]
  int32_t* row_targets = nullptr;                 // [rows]
  int32_t* host_choices = nullptr;                // [rows, 2] and runners-up; -1: none
  int32_t* row_choices = nullptr;                 // [rows] the row itself, or its joint
  uint32_t* branches = nullptr;                   // [tokens, kBranchWords] where it branches
  kernels::cuda::AttentionTile* tiles = nullptr;  // [tokens] count 0 where there are fewer
  kernels::cuda::SampleStep* steps = nullptr;     // [choices, kMaxSampleSteps] where it samples
  int32_t* forced_routes = nullptr;               // [tokens, forced_route_words] where it forces
  int32_t* tables = nullptr;                      // [sequences, table_stride]
  int32_t* words = nullptr;  // all of these; behind the tables the edits and masks of steps
  const int32_t* last_chosen_ids = nullptr;  // in the other lane: what the step before this chose
  // Back.
  int32_t* chosen_ids = nullptr;     // [choices]
  float* choice_facts = nullptr;     // [choices, kSampleFacts] where it samples
  int32_t* row_records = nullptr;    // [rows, row_words]
  int32_t* token_records = nullptr;  // [tokens, token_words]
  float* hidden_states = nullptr;    // [rows, hidden] what the head reads
  JointMemory joint;                 // where one is made
  float* logits = nullptr;           // [rows, vocabulary]
};

/// A step as it was packed: what decides its results, but for keys and values.
struct PackedStep {
  StepShape shape;
  int64_t words = 0;  // of its inputs
  bool audit = false, read_logits = false, read_hidden_states = false;
};

/// The buffers of both sides and where a shape's parts lie in them. A step's results go to one of
/// two lanes, so that the next one can run while they are read back; only lane 0 has room for large
/// steps, hidden states and logits on the host.
class StepBuffers {
 public:
  StepBuffers(DeviceRuntime& runtime, const ops::Graph& graph, const AuditLayout& layout,
              const EngineOptions& options, DType kv_type,
              const engine::DeviceJointSpec* joint = nullptr);
  ~StepBuffers();

  /// The shape that a step of so many tokens and rows, up to that position, runs in: the next
  /// powers of two (above 64 quarters between them), or the engine's limits.
  StepShape shape_of(int64_t tokens, int64_t rows, int64_t last_position) const;
  StepShape shape_of(const engine::StepBatch& batch) const;
  StepMemory on_device(const StepShape& shape) const;

  /// Writes the host's inputs of the shape's lane; waits for what is under way there. A token id of
  /// -1 - i stands for choice i of the other lane's step.
  PackedStep pack(const engine::StepBatch& batch, const StepShape& shape, int32_t heads,
                  int32_t kv_heads);
  /// Whether lane 1 has room for it.
  bool takes_ahead(const engine::StepBatch& next) const {
    return std::ssize(next.token_ids) <= most_ahead_;
  }
  /// Whether `ahead`, packed and started before its tokens were known, is what `step` asks for,
  /// packed in the other lane, whose results stand on the host.
  bool is_same(const PackedStep& step, const PackedStep& ahead, int64_t tokens) const;
  /// Copies the packed inputs to the device. Throws kInternal.
  void send(const PackedStep& step);
  /// Begins to copy what the step was asked for to the host.
  void start_read_back(const engine::StepBatch& batch, const PackedStep& step);
  /// Waits for it.
  engine::DevicePass receive(const PackedStep& step);

  /// Executor::keep_choosable: what the kernel takes, as many rows as there is room for.
  bool keep_choosable(std::span<const DeviceSamplerSteps*> row_steps) const;

  uint64_t num_bytes() const {
    return device_in_.size() + device_out_[0].size() + device_out_[1].size();
  }

 private:
  // Records of a step of so many tokens and rows, in words.
  int64_t record_words(int32_t tokens, int32_t rows) const;
  StepMemory at(const StepShape& shape, std::byte* in, std::byte* out) const;
  StepMemory on_host(const StepShape& shape) const {
    const auto lane = static_cast<size_t>(shape.lane);
    return at(shape, host_in_[lane].data(), host_out_[lane].data());
  }
  // Waits for the lane's readback where one is under way.
  Status settle(int32_t lane);
  void write_forced_routes(const engine::StepBatch& batch, const StepMemory& memory) const;
  void write_joint(const engine::DeviceJointStep& joint, const StepMemory& memory);
  void write_choices(const engine::StepBatch& batch, const StepMemory& memory) const;
  // Words of the choices, records and values of so many rows of a joint.
  int64_t joint_record_words(int32_t joints) const;
  int64_t words_before_tables(const StepShape& shape) const;
  // Has the most inputs, and no joint.
  StepShape largest_shape() const {
    StepShape shape{max_tokens_, max_rows_, 1};
    shape.samples = samples_;
    shape.forces = shape.branches = true;
    return shape;
  }

  DeviceRuntime& runtime_;
  int32_t max_tokens_, max_rows_, max_ranges_, most_ahead_;
  bool samples_, tensor_core_attention_;
  const AuditLayout& layout_;
  JointLayout joint_;
  std::vector<const float*> joint_sources_;  // of the step that is packed
  int64_t row_words_, token_words_, forced_words_, hidden_, vocab_, sampler_words_, table_stride_;
  DeviceBuffer device_in_;
  std::array<DeviceBuffer, 2> device_out_;  // [lanes]
  std::array<HostBuffer, 2> host_in_, host_out_;
  std::array<bool, 2> is_under_way_ = {};
};

}  // namespace vitrine::backend_cuda
