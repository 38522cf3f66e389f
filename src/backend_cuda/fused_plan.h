// A model's graph as launches of CUDA kernels over device memory that is given once.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend_cuda/device_weights.h"
#include "backend_cuda/step_memory.h"
#include "engine/device_model.h"
#include "kernels/cuda/combine/combine.h"
#include "kernels/cuda/kv/kv_cache.h"

namespace vitrine::backend_cuda {

/// One kernel's start, or one launcher's where that is several. What it captures stays as it is;
/// what depends on the step comes in.
using Launch = std::function<Status(const StepMemory&, Stream)>;

/// An intermediate on the device, and the int8 forms that products read (linear/activation_rows.h).
struct RowsBuffer {
  int64_t width = 0;
  int64_t capacity = 0;
  bool is_head_input = false;  // lies where it is sent back from, StepMemory::hidden_states
  float* data = nullptr;       // [capacity, width]
  std::map<int32_t, std::byte*> int8_rows;  // by group size

  float* values(const StepMemory& memory) const {
    return is_head_input ? memory.hidden_states : data;
  }
};

/// Makes the launches of a graph's nodes. Launches of nodes for rows alone are left out of shapes
/// without rows.
class FusedPlan {
 public:
  FusedPlan(DeviceRuntime& runtime, const engine::DeviceModelInputs& inputs);

  /// Starts every kernel of a step of that shape on the stream. Throws kInternal.
  void launch(const StepMemory& memory, Stream stream) const;

  DeviceWeights& weights() { return weights_; }
  const DeviceWeights& weights() const { return weights_; }
  const std::vector<PlanEntry>& entries() const { return entries_; }
  const std::vector<kernels::cuda::KvCache>& kv() const { return kv_; }
  /// Bytes of one storage block of a layer's keys, or values.
  size_t kv_block_bytes() const { return kv_block_bytes_; }
  uint64_t kv_bytes() const { return kv_memory_.size(); }
  uint64_t activation_bytes() const { return activation_bytes_; }

 private:
  struct Routes {
    int32_t top_k = 0, experts = 0;
    int32_t* ids = nullptr;
    float* weights = nullptr;
  };
  struct PlannedLaunch {
    Launch start;
    bool for_rows = false;
    std::string what;
    size_t node = 0;
    const RowsBuffer* forms = nullptr;  // what it quantizes; null: it does something else
    size_t forms_before = 0;            // forms that the producer makes itself
  };

  void plan_kv();
  void plan_node(const ops::OpNode& node);
  void plan_embed(const ops::OpNode& node);
  void plan_norm(const ops::OpNode& node);
  void plan_qkv(const ops::OpNode& node);
  void plan_attention(const ops::OpNode& node);
  void plan_project(const ops::OpNode& node);
  void plan_router(const ops::OpNode& node);
  void plan_experts(const ops::OpNode& node);
  void plan_dense(const ops::OpNode& node);
  void plan_combine(const ops::OpNode& node);
  void plan_head(const ops::OpNode& node);

  RowsBuffer& value(ops::ValueId id) { return values_[static_cast<size_t>(id)]; }
  /// Scratch of that name and size, the same for every layer that asks.
  void* scratch(const std::string& name, int64_t bytes);
  RowsBuffer& shared_rows(const std::string& name, int64_t capacity, int64_t width);
  const AuditLayout::Layer* record_of(int layer) const;

  /// Asks the producer of `rows` for the form that the matrix reads.
  void need(RowsBuffer& rows, const DeviceMatrix& matrix);
  /// Launches that make all forms of `rows` (but the one that its producer makes itself): as many
  /// rows as `per_token` tokens have, or one for each row of logits.
  void add_forms(const RowsBuffer& rows, int32_t per_token);

  void add(Launch start, const std::string& what);
  void add_product(const DeviceMatrix& matrix, RowsBuffer& in, kernels::cuda::Epilogue epilogue);
  /// Throws kUnsupported where one launch cannot read both.
  static void require_pair(const DeviceMatrix& gate, const DeviceMatrix& up);
  /// The hidden layer of a dense block, and its forms.
  void add_gate_up(const DeviceMatrix& gate, const DeviceMatrix& up, RowsBuffer& in,
                   RowsBuffer& hidden);
  void finish_addend();
  /// Drops quantizations that nobody asked for, and names each node's kernels.
  void finish();

  DeviceRuntime& runtime_;
  const ops::Graph& graph_;
  const AuditLayout& layout_;
  const EngineOptions& options_;
  int64_t num_blocks_, max_tokens_, max_rows_;
  DeviceWeights weights_;
  std::vector<DeviceBuffer> memory_;
  DeviceBuffer kv_memory_;
  size_t kv_block_bytes_ = 0;
  uint64_t activation_bytes_ = 0;
  std::vector<kernels::cuda::KvCache> kv_;  // by layer
  std::vector<RowsBuffer> values_;          // by ValueId
  std::map<std::string, std::unique_ptr<RowsBuffer>> shared_rows_;
  std::map<std::string, void*> scratch_;
  std::map<int, Routes> routes_;  // by layer
  const float* rope_cos_ = nullptr;
  const float* rope_sin_ = nullptr;
  float* qkv_ = nullptr;  // [tokens, (heads + 2 * kv_heads) * head_dim]
  // What a combine adds to the residual stream, until the norm behind it takes it along.
  std::optional<kernels::cuda::Addend> addend_;
  std::vector<PlannedLaunch> launches_;
  std::vector<PlanEntry> entries_;
  // Of the node that is being planned:
  bool node_is_for_rows_ = false;
};

}  // namespace vitrine::backend_cuda
