// SPDX-License-Identifier: Apache-2.0
// What the ops of a plan are planned with: memory for intermediates, weights, launches.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend_cuda/device_weights.h"
#include "backend_cuda/step_memory.h"
#include "engine/run/device_model.h"
#include "kernels/cuda/combine/combine.h"
#include "kernels/cuda/kv/kv_cache.h"
#include "kernels/cuda/linear/activation_rows.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/router/router.h"

namespace vitrine::backend_cuda {

/// One kernel's start, or one launcher's where that is several. What it captures stays as it is;
/// what depends on the step comes in.
using Launch = std::function<Status(const StepMemory&, Stream)>;

/// An intermediate on the device, and the forms that products read (linear/activation_rows.h).
struct RowsBuffer {
  int64_t width = 0;
  int64_t stride = 0;  // from row to row
  int64_t capacity = 0;
  bool is_head_input = false;    // lies where it is sent back from, StepMemory::hidden_states
  bool is_for_products = false;  // products and adapters alone read it
  bool floats_are_read = false;  // by one of these
  float* data = nullptr;         // [capacity, stride]
  std::map<int32_t, std::byte*> forms;  // of int8 by group size; kBf16Form, kE4M3Form

  float* values(const StepMemory& memory) const {
    return is_head_input ? memory.hidden_states : data;
  }
  /// Whoever computes these rows writes them as bf16, and no launch rounds them.
  bool is_made_as_bf16() const {
    return is_for_products && !floats_are_read && forms.size() == 1 &&
           forms.begin()->first == kBf16Form && width % kernels::cuda::kRecordCols == 0;
  }
  /// Where a product writes them.
  kernels::cuda::Epilogue target() const;
};

/// The rows that a product of this matrix reads, as it reads them.
kernels::cuda::Rows rows_for(const DeviceMatrix& matrix, const RowsBuffer& in, int32_t count);

/// A layer's routed experts, by token and slot.
struct Routes {
  int32_t top_k = 0, experts = 0;
  int32_t* ids = nullptr;               // [tokens, top_k]
  float* weights = nullptr;             // [tokens, top_k]
  const float* shared_gates = nullptr;  // [tokens] before the sigmoid; null: no shared expert's
  kernels::cuda::Grouping grouping;     // of one token by the router, of more by a kernel behind it
};

/// Says whether a launch is part of a shape.
using Condition = bool (*)(const StepShape&);
inline bool has_adapters(const StepShape& shape) { return shape.adapts; }
inline bool has_no_adapters(const StepShape& shape) { return !shape.adapts; }
inline bool has_samplers(const StepShape& shape) { return shape.samples; }
inline bool has_joint(const StepShape& shape) { return shape.joints > 0; }
inline bool has_no_joint(const StepShape& shape) { return shape.joints == 0; }
inline bool has_sampled_joint(const StepShape& shape) { return shape.joints > 0 && shape.samples; }

/// Says where the storage blocks of keys and values lie: a plane of each layer's keys, then one of
/// its values.
struct KvPlanes {
  std::byte* first = nullptr;
  size_t stride = 0;  // bytes from plane to plane
  size_t count = 0;
  size_t block_bytes = 0;  // of one block in a plane
};

struct PlannedLaunch {
  Launch start;
  bool for_rows = false;          // left out of shapes without rows
  bool behind_choice = false;     // part of a step behind the choice of its tokens
  Condition condition = nullptr;  // null: part of all others
  std::string what;
  size_t node = 0;
  const RowsBuffer* forms = nullptr;  // whose forms it makes; null: it does something else
  bool follows_norm = false;          // which makes some itself
};

/// Keeps all that the launches point to. Everything throws as engine::DeviceModel says.
class PlanBuilder {
 public:
  PlanBuilder(DeviceRuntime& runtime, const engine::DeviceModelInputs& inputs);

  const ops::Graph& graph() const { return graph_; }
  const AuditLayout& layout() const { return layout_; }
  const EngineOptions& options() const { return options_; }
  int64_t max_tokens() const { return options_.max_step_tokens; }
  int64_t max_rows() const { return options_.max_logit_rows; }
  /// Null where the engine has none.
  const ops::AdapterWeights* adapters() const { return adapters_; }
  /// [max_context, half of the elements of a head that are rotated]
  const float* rope_cos() const { return rope_cos_; }
  const float* rope_sin() const { return rope_sin_; }
  const std::vector<kernels::cuda::KvCache>& kv() const { return kv_; }  // by layer
  /// All layers' keys and values.
  KvPlanes kv_planes() const { return kv_planes_; }
  DType kv_type() const { return kv_type_; }  // of the elements of keys and values
  uint64_t kv_bytes() const { return kv_memory_.size(); }
  uint64_t activation_bytes() const { return activation_bytes_; }
  DeviceWeights& weights() { return weights_; }
  const DeviceWeights& weights() const { return weights_; }

  /// Words of a layer's values in a token's record; null where none are recorded.
  const AuditLayout::Layer* record_of(int layer) const;
  RowsBuffer& value(ops::ValueId id) { return values_[static_cast<size_t>(id)]; }
  Routes& routes(int layer) { return routes_[layer]; }
  /// Scratch of that name and size, the same for every layer that asks: layers run one after the
  /// other.
  void* scratch(const std::string& name, int64_t bytes);
  RowsBuffer& shared_rows(const std::string& name, int64_t capacity, int64_t width);

  /// From here on launches are the node's.
  void begin_node(const ops::OpNode& node, bool for_rows, bool behind_choice = false);
  /// Weight bytes of the node that a decoded token reads, where these are not all of them.
  void set_weight_bytes(uint64_t bytes) { weight_bytes_ = bytes; }
  uint64_t node_weight_bytes() const { return weights_.num_bytes() - bytes_before_; }
  void end_node(const ops::OpNode& node);

  /// From here on launches are part of such shapes only, until the next call. Null: of all.
  void set_condition(Condition condition) { condition_ = condition; }
  void add(Launch start, const std::string& what);
  /// Asks the producer of `rows` for the form that the matrix reads.
  void need(RowsBuffer& rows, const DeviceMatrix& matrix);
  /// Launches that make all forms of `rows`, `per_token` rows for each token.
  void add_forms(const RowsBuffer& rows, int32_t per_token);
  /// Launches that make the other forms of `rows` where the norm before makes bf16, E4M3 and the
  /// first of int8 itself, of tokens or of rows of logits.
  void add_further_forms(const RowsBuffer& rows);
  void add_product(const DeviceMatrix& matrix, RowsBuffer& in, kernels::cuda::Epilogue epilogue);
  /// Throws kUnsupported where one launch cannot read both.
  static void require_pair(const DeviceMatrix& gate, const DeviceMatrix& up);
  /// The hidden layer of a dense block.
  void add_gate_up(const DeviceMatrix& gate, const DeviceMatrix& up, RowsBuffer& in,
                   RowsBuffer& hidden);

  /// The hidden layer of gate and up that stand by themselves, `per_token` rows of each for a
  /// token.
  void add_gating(const kernels::Gating& gating, const RowsBuffer& gate, const RowsBuffer& up,
                  RowsBuffer& hidden, int64_t per_token);

  /// Leaves a sum into the residual stream to the norm behind it.
  void set_addend(const kernels::cuda::Addend& addend) {
    addend_ = addend;
    addend_node_ = entries_.size();
  }
  /// What was left, once.
  std::optional<kernels::cuda::Addend> take_addend() { return std::exchange(addend_, {}); }
  /// Adds what was left by a launch of its own, which counts to the node before this one.
  void finish_addend();

  /// Drops quantizations that nobody asked for, and names each node's kernels.
  void finish();
  const std::vector<PlannedLaunch>& launches() const { return launches_; }
  const std::vector<PlanEntry>& entries() const { return entries_; }

 private:
  void plan_kv(int64_t num_blocks);
  void place_values();
  void add_forms(const RowsBuffer& rows, int32_t per_token, bool follows_norm);

  DeviceRuntime& runtime_;
  const ops::Graph& graph_;
  const AuditLayout& layout_;
  const EngineOptions& options_;
  DType kv_type_;
  DeviceWeights weights_;
  const ops::AdapterWeights* adapters_;
  std::vector<DeviceBuffer> memory_;
  DeviceBuffer kv_memory_;
  KvPlanes kv_planes_;
  uint64_t activation_bytes_ = 0;
  std::vector<kernels::cuda::KvCache> kv_;
  std::vector<RowsBuffer> values_;  // by ValueId
  std::map<std::string, std::unique_ptr<RowsBuffer>> shared_rows_;
  std::map<std::string, void*> scratch_;
  std::map<int, Routes> routes_;  // by layer
  const float* rope_cos_ = nullptr;
  const float* rope_sin_ = nullptr;
  std::optional<kernels::cuda::Addend> addend_;
  size_t addend_node_ = 0;  // whose it is
  std::vector<PlannedLaunch> launches_;
  std::vector<PlanEntry> entries_;
  // The members below belong to the node that is being planned.
  bool node_is_for_rows_ = false;
  bool node_is_behind_choice_ = false;
  Condition condition_ = nullptr;
  uint64_t bytes_before_ = 0;
  std::optional<uint64_t> weight_bytes_;
};

}  // namespace vitrine::backend_cuda
