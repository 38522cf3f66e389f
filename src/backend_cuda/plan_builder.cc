#include "backend_cuda/plan_builder.h"

#include "backend_cuda/cuda_op.h"
#include "kernels/cuda/linear/activation_rows.h"
#include "kernels/cuda/linear/linear.h"

namespace vitrine::backend_cuda {

using kernels::cuda::ActivationFormat;
using kernels::cuda::Epilogue;
using kernels::cuda::FloatFormat;
using kernels::cuda::Rows;
using ops::OpNode;

PlanBuilder::PlanBuilder(DeviceRuntime& runtime, const engine::DeviceModelInputs& inputs)
    : runtime_(runtime),
      graph_(inputs.graph),
      layout_(inputs.layout),
      options_(inputs.options),
      weights_(runtime, inputs.kernel, inputs.weights, inputs.weights_read),
      adapters_(inputs.adapters) {
  plan_kv(inputs.num_blocks);
  const int64_t angles = options_.max_context * (graph_.head_dim / 2);
  rope_cos_ = weights_.constants(inputs.rope_cos, angles);
  rope_sin_ = weights_.constants(inputs.rope_sin, angles);
  place_values();
}

void PlanBuilder::plan_kv(int64_t num_blocks) {
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
  const size_t plane = kv_block_bytes_ * static_cast<size_t>(num_blocks);
  kv_memory_ =
      DeviceBuffer(runtime_, plane * 2 * static_cast<size_t>(graph_.num_layers), "the KV cache");
  for (int layer = 0; layer < graph_.num_layers; ++layer) {
    std::byte* keys = kv_memory_.data() + plane * 2 * static_cast<size_t>(layer);
    kv_.push_back({keys, keys + plane, format, static_cast<int32_t>(graph_.num_kv_heads),
                   static_cast<int32_t>(graph_.head_dim)});
  }
}

void PlanBuilder::place_values() {
  values_.resize(graph_.values.size());
  for (const OpNode& node : graph_.nodes) {
    const bool is_placed = !find_cuda_op(node.type).places_outputs;
    for (const ops::ValueId id : node.outputs) {
      RowsBuffer& rows = value(id);
      if (rows.width != 0) continue;
      const ops::Value& described = graph_.values[static_cast<size_t>(id)];
      rows.width = rows.stride = described.width;
      rows.capacity = described.per_row ? max_rows() : max_tokens();
      rows.is_head_input = described.per_row;
      if (described.per_row || !is_placed) continue;
      rows.data =
          static_cast<float*>(scratch("value " + described.name, rows.capacity * rows.width * 4));
    }
  }
}

void PlanBuilder::begin_node(const OpNode& node, bool for_rows) {
  node_is_for_rows_ = for_rows || (!node.outputs.empty() &&
                                   graph_.values[static_cast<size_t>(node.outputs[0])].per_row);
  bytes_before_ = weights_.num_bytes();
  weight_bytes_.reset();
}

void PlanBuilder::end_node(const OpNode& node) {
  entries_.push_back({node.layer, node.type, "", weight_bytes_.value_or(node_weight_bytes())});
}

void PlanBuilder::finish() {
  finish_addend();
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

void* PlanBuilder::scratch(const std::string& name, int64_t bytes) {
  void*& memory = scratch_[name + "/" + std::to_string(bytes)];
  if (memory == nullptr) {
    memory = memory_.emplace_back(runtime_, static_cast<size_t>(bytes), name).data();
    activation_bytes_ += static_cast<uint64_t>(bytes);
  }
  return memory;
}

RowsBuffer& PlanBuilder::shared_rows(const std::string& name, int64_t capacity, int64_t width) {
  std::unique_ptr<RowsBuffer>& rows = shared_rows_[name + "/" + std::to_string(width)];
  if (rows == nullptr) {
    rows = std::make_unique<RowsBuffer>();
    rows->width = rows->stride = width;
    rows->capacity = capacity;
    rows->data = static_cast<float*>(scratch(name, capacity * width * 4));
  }
  return *rows;
}

const AuditLayout::Layer* PlanBuilder::record_of(int layer) const {
  for (const AuditLayout::Layer& record : layout_.layers) {
    if (record.layer == layer) return &record;
  }
  return nullptr;
}

void PlanBuilder::need(RowsBuffer& rows, const DeviceMatrix& matrix) {
  if (!matrix.is_packed) return;
  std::byte*& form = rows.int8_rows[matrix.group_size()];
  if (form != nullptr) return;
  const int64_t bytes = rows.capacity * kernels::cuda::int8_row_bytes(rows.width);
  form = memory_.emplace_back(runtime_, static_cast<size_t>(bytes), "int8 activations").data();
  activation_bytes_ += static_cast<uint64_t>(bytes);
}

void PlanBuilder::add(Launch start, const std::string& what) {
  launches_.push_back({.start = std::move(start),
                       .for_rows = node_is_for_rows_,
                       .condition = condition_,
                       .what = what,
                       .node = entries_.size()});
}

void PlanBuilder::add_quantization(const RowsBuffer& rows, int32_t per_token, size_t first) {
  // Which forms there are is known when all nodes are planned: those behind this one ask for them.
  add(
      [&rows, per_token, first](const StepMemory& memory, Stream stream) -> Status {
        const int64_t count =
            rows.is_head_input ? memory.shape.rows : int64_t{memory.shape.tokens} * per_token;
        for (auto form = std::next(rows.int8_rows.begin(), static_cast<ptrdiff_t>(first));
             form != rows.int8_rows.end(); ++form) {
          const Status status =
              kernels::cuda::quantize_rows(rows.values(memory), rows.stride, count, rows.width,
                                           form->first, form->second, stream);
          if (!status.ok()) return status;
        }
        return {};
      },
      "quantize");
  launches_.back().forms = &rows;
  launches_.back().forms_before = first;
}

void PlanBuilder::add_forms(const RowsBuffer& rows, int32_t per_token) {
  add_quantization(rows, per_token, 0);
}
void PlanBuilder::add_further_forms(const RowsBuffer& rows) { add_quantization(rows, 1, 1); }

void PlanBuilder::add_product(const DeviceMatrix& matrix, RowsBuffer& in, Epilogue epilogue) {
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
                                             {in.values(memory), in.stride, rows, 0}, own, stream);
        }
        rows.format = ActivationFormat::kInt8;
        rows.activations = in.int8_rows.at(matrix.group_size());
        return kernels::cuda::linear(matrix.packed, 1, rows, own, {}, stream);
      },
      matrix.kernel + (epilogue.adds_residual ? "+residual" : ""));
}

void PlanBuilder::require_pair(const DeviceMatrix& gate, const DeviceMatrix& up) {
  if (gate.kernel == up.kernel) return;
  throw Error(ErrorKind::kUnsupported, "gate and up projections are stored in two formats (" +
                                           gate.kernel + ", " + up.kernel +
                                           "), for which there is no CUDA kernel; use --kernels "
                                           "reference");
}

void PlanBuilder::add_gate_up(const DeviceMatrix& gate, const DeviceMatrix& up, RowsBuffer& in,
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
}

void PlanBuilder::finish_addend() {
  const std::optional<kernels::cuda::Addend> addend = take_addend();
  if (!addend.has_value()) return;
  const RowsBuffer& residual = value(graph_.nodes[0].outputs[0]);
  const bool for_rows = std::exchange(node_is_for_rows_, false);
  add(
      [addend = *addend, &residual](const StepMemory& memory, Stream stream) {
        return kernels::cuda::add_to_residual(addend, memory.shape.tokens, residual.width,
                                              residual.data, stream);
      },
      "combine+residual");
  launches_.back().node = addend_node_;  // of the combine, not of what comes next
  node_is_for_rows_ = for_rows;
}

}  // namespace vitrine::backend_cuda
