// SPDX-License-Identifier: Apache-2.0
// A model whose steps run wholly on a device by fused kernels: what the engine asks of a backend
// that it loads, and what the backend is given. The backend includes this header, the engine links
// nothing of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/run/device_joint.h"
#include "engine/run/executor.h"
#include "ops/plan.h"

namespace vitrine::engine {

/// What a pass left on the host. It is valid until the next one.
struct DevicePass {
  const std::byte* chosen_ids = nullptr;     // [rows]
  const std::byte* row_records = nullptr;    // [rows] of layout row_words, where asked for
  const std::byte* token_records = nullptr;  // [tokens] of layout token_words, where asked for
  const float* logits = nullptr;             // [rows, vocabulary], where asked for
  const float* hidden_states = nullptr;      // [rows, hidden], where asked for
  const float* choice_facts = nullptr;       // [rows, kChoiceFacts], where a row has steps
  DeviceRows rows_on_device;
  DeviceJointResult joint = {};  // of StepBatch::joint, in place of ids and facts
};

/// A joint of rows that passes of several models left on one device. Not thread-safe; throws as
/// DeviceModel does.
class DeviceJoint {
 public:
  virtual ~DeviceJoint() = default;
  /// One copy to the device, one launch of a graph, one copy back. `sources`: [row_width] where
  /// each specialist's rows of logits begin on the device, and the hidden states that a gate reads.
  virtual DeviceJointResult run(const DeviceJointStep& step,
                                std::span<const float* const> sources) = 0;
  /// Does what DeviceModel::keep_choosable() does.
  virtual bool keep_choosable(std::span<const DeviceSamplerSteps*> row_steps) const = 0;
  virtual uint64_t num_bytes() const = 0;
};

/// Counts bytes on the device.
struct DeviceMemoryUse {
  uint64_t weights = 0;
  uint64_t kv = 0;
  uint64_t activations = 0;
};

/// Not thread-safe. All functions throw vitrine::Error: kOutOfMemory saying what was asked for and
/// what was free, kUnsupported for what has no kernel here, kInternal for what the device refused.
class DeviceModel {
 public:
  virtual ~DeviceModel() = default;
  /// Packs and uploads the weights, once, when the host has read them.
  virtual void load() = 0;
  /// One pass: one copy to the device, one launch of a graph, one copy back. Starts what
  /// StepBatch::next says before it waits, and meanwhile calls StepBatch::meanwhile.
  virtual DevicePass run(const StepBatch& batch) = 0;
  /// Make the same pass in two parts, where the host chooses in the middle of it. The first goes up
  /// to its rows and a joint of them, without records; the second makes the records, by the same
  /// batch and what the host chose. Each part is
  /// a copy, a launch and a copy back. The first one's logits stay where they are.
  virtual DevicePass run_to_choice(const StepBatch& batch) = 0;
  virtual DevicePass run_from_choice(const StepBatch& batch) = 0;
  virtual void copy_block(int32_t from, int32_t to) = 0;
  /// Does what Executor::keep_choosable() does, for a joint's rows where the model makes one.
  virtual bool keep_choosable(std::span<const DeviceSamplerSteps*> row_steps) const = 0;
  virtual const std::vector<PlanEntry>& plan() const = 0;
  virtual DeviceMemoryUse memory_use() const = 0;
  /// Does what Executor::measure_read_bandwidth() does, with the device's memory.
  virtual std::optional<double> measure_read_bandwidth(double seconds) = 0;
};

/// What a backend makes a model from. All but `weights`, `rope_*` and `joint` outlive it; these
/// must live until load() returns.
struct DeviceModelInputs {
  const ops::Graph& graph;
  const AuditLayout& layout;
  const EngineOptions& options;  // sizes resolved: no zeros
  int64_t num_blocks = 0;
  DType kv_type = DType::kF32;        // of the elements of keys and values, in all layers
  const kernels::CpuKernels& kernel;  // reads embedding tables
  ops::PackedWeights& weights;
  bool weights_read = true;         // false: a plan is made, nothing runs
  int64_t rope_half = 0;            // half of the elements of a head that are rotated
  const float* rope_cos = nullptr;  // [max_context, rope_half]
  const float* rope_sin = nullptr;
  const ops::AdapterWeights* adapters = nullptr;  // null where there are none
  const DeviceJointSpec* joint = nullptr;         // of a federation's steps; null: none is made
};

}  // namespace vitrine::engine
