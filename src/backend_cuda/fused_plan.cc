#include "backend_cuda/fused_plan.h"

#include "kernels/cuda/linear/activation_rows.h"
#include "kernels/cuda/linear/linear.h"

namespace vitrine::backend_cuda {

using kernels::cuda::ActivationFormat;
using kernels::cuda::Epilogue;
using kernels::cuda::FloatFormat;
using kernels::cuda::Rows;
using ops::OpNode;

FusedPlan::FusedPlan(DeviceRuntime& runtime, const engine::DeviceModelInputs& inputs)
    : runtime_(runtime),
      graph_(inputs.graph),
      layout_(inputs.layout),
      options_(inputs.options),
      num_blocks_(inputs.num_blocks),
      max_tokens_(inputs.options.max_step_tokens),
      max_rows_(inputs.options.max_logit_rows),
      weights_(runtime, inputs.kernel, inputs.weights, inputs.weights_read) {
  plan_kv();
  const int64_t angles = options_.max_context * (graph_.head_dim / 2);
  rope_cos_ = weights_.constants(inputs.rope_cos, angles);
  rope_sin_ = weights_.constants(inputs.rope_sin, angles);
  values_.resize(graph_.values.size());
  for (const OpNode& node : graph_.nodes) {
    for (const ops::ValueId id : node.outputs) {
      RowsBuffer& rows = value(id);
      if (rows.width != 0) continue;
      const ops::Value& described = graph_.values[static_cast<size_t>(id)];
      rows.width = described.width;
      rows.capacity = described.per_row ? max_rows_ : max_tokens_;
      rows.is_head_input = described.per_row;
      // Queries, keys and values lie side by side, qkv_.
      if (described.per_row || node.type == "qkv") continue;
      rows.data =
          static_cast<float*>(scratch("value " + described.name, rows.capacity * rows.width * 4));
    }
  }
  for (const OpNode& node : graph_.nodes) plan_node(node);
  finish_addend();
  finish();
}

void FusedPlan::finish() {
  std::erase_if(launches_, [](const PlannedLaunch& launch) {
    return launch.forms != nullptr && launch.forms->int8_rows.size() <= launch.forms_before;
  });
  for (const PlannedLaunch& launch : launches_) {
    std::string& kernel = entries_[launch.node].kernel;
    kernel += (kernel.empty() ? "cuda." : "+") + launch.what;
  }
  for (PlanEntry& entry : entries_) {
    if (entry.kernel.empty()) entry.kernel = "cuda.in_next_rms_norm";  // a combine
  }
}

void FusedPlan::plan_kv() {
  const FloatFormat format = options_.kv_dtype == DType::kF16    ? FloatFormat::kF16
                             : options_.kv_dtype == DType::kBF16 ? FloatFormat::kBF16
                                                                 : FloatFormat::kF32;
  if (options_.kv_block_size != kernels::cuda::kKvBlock) {
    throw Error(ErrorKind::kUnsupported,
                "engine option 'kv_block_size' is " + std::to_string(options_.kv_block_size) +
                    "; CUDA's fused kernels take blocks of 64; use 64 or --kernels reference");
  }
  kv_block_bytes_ = static_cast<size_t>(graph_.num_kv_heads * graph_.head_dim *
                                        kernels::cuda::kKvBlock * element_bytes(format));
  const size_t plane = kv_block_bytes_ * static_cast<size_t>(num_blocks_);
  kv_memory_ =
      DeviceBuffer(runtime_, plane * 2 * static_cast<size_t>(graph_.num_layers), "the KV cache");
  for (int layer = 0; layer < graph_.num_layers; ++layer) {
    std::byte* keys = kv_memory_.data() + plane * 2 * static_cast<size_t>(layer);
    kv_.push_back({keys, keys + plane, format, static_cast<int32_t>(graph_.num_kv_heads),
                   static_cast<int32_t>(graph_.head_dim)});
  }
}

void FusedPlan::plan_node(const OpNode& node) {
  node_is_for_rows_ =
      node.type == "head" ||
      (!node.outputs.empty() && graph_.values[static_cast<size_t>(node.outputs[0])].per_row);
  const uint64_t bytes_before = weights_.num_bytes();
  if (node.type != "rms_norm" || node_is_for_rows_) finish_addend();
  if (node.type == "embed") {
    plan_embed(node);
  } else if (node.type == "rms_norm") {
    plan_norm(node);
  } else if (node.type == "qkv") {
    plan_qkv(node);
  } else if (node.type == "attention") {
    plan_attention(node);
  } else if (node.type == "project") {
    plan_project(node);
  } else if (node.type == "router") {
    plan_router(node);
  } else if (node.type == "experts") {
    plan_experts(node);
  } else if (node.type == "dense_ffn") {
    plan_dense(node);
  } else if (node.type == "combine") {
    plan_combine(node);
  } else if (node.type == "head") {
    plan_head(node);
  } else {
    throw Error(ErrorKind::kUnsupported, "op '" + node.type +
                                             "' (attribution or hidden states) has no CUDA kernel "
                                             "in this version; use --kernels reference");
  }
  uint64_t bytes = weights_.num_bytes() - bytes_before;
  if (node.type == "embed") bytes /= static_cast<uint64_t>(graph_.vocab_size);
  if (node.type == "experts") {
    const Routes& routes = routes_.at(node.layer);
    bytes = bytes / static_cast<uint64_t>(routes.experts) * static_cast<uint64_t>(routes.top_k);
  }
  entries_.push_back({node.layer, node.type, "", bytes});
}

void* FusedPlan::scratch(const std::string& name, int64_t bytes) {
  void*& memory = scratch_[name + "/" + std::to_string(bytes)];
  if (memory == nullptr) {
    memory = memory_.emplace_back(runtime_, static_cast<size_t>(bytes), name).data();
    activation_bytes_ += static_cast<uint64_t>(bytes);
  }
  return memory;
}

RowsBuffer& FusedPlan::shared_rows(const std::string& name, int64_t capacity, int64_t width) {
  std::unique_ptr<RowsBuffer>& rows = shared_rows_[name + "/" + std::to_string(width)];
  if (rows == nullptr) {
    rows = std::make_unique<RowsBuffer>();
    rows->width = width;
    rows->capacity = capacity;
    rows->data = static_cast<float*>(scratch(name, capacity * width * 4));
  }
  return *rows;
}

const AuditLayout::Layer* FusedPlan::record_of(int layer) const {
  for (const AuditLayout::Layer& record : layout_.layers) {
    if (record.layer == layer) return &record;
  }
  return nullptr;
}

void FusedPlan::need(RowsBuffer& rows, const DeviceMatrix& matrix) {
  if (!matrix.is_packed) return;
  std::byte*& form = rows.int8_rows[matrix.group_size()];
  if (form != nullptr) return;
  const int64_t bytes = rows.capacity * kernels::cuda::int8_row_bytes(rows.width);
  form = memory_.emplace_back(runtime_, static_cast<size_t>(bytes), "int8 activations").data();
  activation_bytes_ += static_cast<uint64_t>(bytes);
}

void FusedPlan::add(Launch start, const std::string& what) {
  launches_.push_back({.start = std::move(start),
                       .for_rows = node_is_for_rows_,
                       .what = what,
                       .node = entries_.size()});
}

void FusedPlan::add_forms(const RowsBuffer& rows, int32_t per_token) {
  // Which forms there are is known when all nodes are planned: those behind this one ask for them.
  add(
      [&rows, per_token](const StepMemory& memory, Stream stream) -> Status {
        const bool is_norm = per_token == 0;
        const int64_t count = rows.is_head_input ? memory.shape.rows
                              : is_norm          ? memory.shape.tokens
                                                 : int64_t{memory.shape.tokens} * per_token;
        for (auto form = rows.int8_rows.begin(); form != rows.int8_rows.end(); ++form) {
          if (is_norm && form == rows.int8_rows.begin()) continue;  // the norm made it
          const Status status =
              kernels::cuda::quantize_rows(rows.values(memory), rows.width, count, rows.width,
                                           form->first, form->second, stream);
          if (!status.ok()) return status;
        }
        return {};
      },
      "quantize");
  launches_.back().forms = &rows;
  launches_.back().forms_before = per_token == 0 ? 1 : 0;
}

void FusedPlan::add_product(const DeviceMatrix& matrix, RowsBuffer& in, Epilogue epilogue) {
  need(in, matrix);
  const bool writes_logits = epilogue.out == nullptr;
  add(
      [&matrix, &in, epilogue, writes_logits](const StepMemory& memory, Stream stream) {
        Epilogue own = epilogue;
        if (writes_logits) own.out = memory.logits;
        Rows rows;
        rows.count = in.is_head_input ? memory.shape.rows : memory.shape.tokens;
        if (!matrix.is_packed) {
          return kernels::cuda::linear_float(matrix.floats, 1,
                                             {in.values(memory), in.width, rows, 0}, own, stream);
        }
        rows.format = ActivationFormat::kInt8;
        rows.activations = in.int8_rows.at(matrix.group_size());
        return kernels::cuda::linear(matrix.packed, 1, rows, own, {}, stream);
      },
      matrix.kernel + (epilogue.adds_residual ? "+residual" : ""));
}

void FusedPlan::require_pair(const DeviceMatrix& gate, const DeviceMatrix& up) {
  if (gate.kernel == up.kernel) return;
  throw Error(ErrorKind::kUnsupported, "gate and up projections are stored in two formats (" +
                                           gate.kernel + ", " + up.kernel +
                                           "), for which there is no CUDA kernel; use --kernels "
                                           "reference");
}

void FusedPlan::add_gate_up(const DeviceMatrix& gate, const DeviceMatrix& up, RowsBuffer& in,
                            RowsBuffer& hidden) {
  require_pair(gate, up);
  need(in, gate);
  add(
      [&gate, &up, &in, &hidden](const StepMemory& memory, Stream stream) {
        Epilogue epilogue;
        epilogue.out = hidden.data;
        epilogue.out_stride = hidden.width;
        Rows rows;
        rows.count = memory.shape.tokens;
        if (!gate.is_packed) {
          return kernels::cuda::gate_up_float(
              gate.floats, up.floats, 1, {in.values(memory), in.width, rows, 0}, epilogue, stream);
        }
        rows.format = ActivationFormat::kInt8;
        rows.activations = in.int8_rows.at(gate.group_size());
        return kernels::cuda::gate_up(gate.packed, up.packed, 1, rows, epilogue, {}, stream);
      },
      "gate_up_" + gate.kernel);
  add_forms(hidden, 1);
}

void FusedPlan::launch(const StepMemory& memory, Stream stream) const {
  for (const PlannedLaunch& launch : launches_) {
    if (launch.for_rows && memory.shape.rows == 0) continue;
    check(launch.start(memory, stream), "starting " + launch.what);
  }
}

}  // namespace vitrine::backend_cuda
