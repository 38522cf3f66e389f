// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/plan_builder.h"

#include <algorithm>
#include <iterator>

#include "backend_cuda/cuda_op.h"
#include "kernels/cuda/gating/gating.h"

namespace vitrine::backend_cuda {

using kernels::cuda::Epilogue;
using kernels::cuda::FloatFormat;
using kernels::cuda::Rows;
using ops::OpNode;

namespace {

/// How many of a buffer's forms, in their order, the norm before makes.
size_t forms_of_norm(const RowsBuffer& rows) {
  const size_t floats = rows.forms.count(kBf16Form) + rows.forms.count(kE4M3Form);
  return std::min(rows.forms.size(), floats + 1);
}

/// Makes one form of `count` float rows.
Status make_form(int32_t form, const float* x, const RowsBuffer& rows, int64_t count, void* to,
                 Stream stream) {
  using namespace kernels::cuda;
  if (form == kBf16Form) return round_rows(x, rows.stride, count, rows.width, to, stream);
  if (form == kE4M3Form) return quantize_rows_e4m3(x, rows.stride, count, rows.width, to, stream);
  return quantize_rows(x, rows.stride, count, rows.width, form, to, stream);
}

}  // namespace

Epilogue RowsBuffer::target() const {
  Epilogue epilogue;
  epilogue.out_stride = width;
  if (is_made_as_bf16()) {
    epilogue.out = forms.begin()->second;
    epilogue.out_format = FloatFormat::kBF16;
  } else {
    epilogue.out = data;
  }
  return epilogue;
}

Rows rows_for(const DeviceMatrix& matrix, const RowsBuffer& in, int32_t count) {
  Rows rows;
  rows.count = count;
  if (matrix.is_packed) {
    rows.format = matrix.activations;
    rows.activations = in.forms.at(matrix.form());
  }
  return rows;
}

namespace {

FloatFormat kv_format(DType type) {
  return type == DType::kF16    ? FloatFormat::kF16
         : type == DType::kBF16 ? FloatFormat::kBF16
                                : FloatFormat::kF32;
}

}  // namespace

PlanBuilder::PlanBuilder(DeviceRuntime& runtime, const engine::DeviceModelInputs& inputs)
    : runtime_(runtime),
      graph_(inputs.graph),
      layout_(inputs.layout),
      options_(inputs.options),
      kv_type_(inputs.kv_type),
      weights_(runtime, inputs),
      adapters_(inputs.adapters) {
  for (const OpNode& node : graph_.nodes) {
    const std::string_view speciality = node.parameters->speciality();
    if (!speciality.empty() && !has_cuda_op(node.type)) refuse_op(node, std::string(speciality));
  }
  plan_kv(inputs.num_blocks);
  const int64_t angles = options_.max_context * inputs.rope_half;
  rope_cos_ = weights_.constants(inputs.rope_cos, angles);
  rope_sin_ = weights_.constants(inputs.rope_sin, angles);
  place_values();
}

void PlanBuilder::plan_kv(int64_t num_blocks) {
  const FloatFormat format = kv_format(kv_type_);
  if (options_.kv_block_size != kernels::cuda::kKvBlock) {
    throw Error(ErrorKind::kUnsupported,
                "engine option 'kv_block_size' is " + std::to_string(options_.kv_block_size) +
                    "; CUDA's fused kernels take blocks of 64; use 64 or --kernels reference");
  }
  kernels::cuda::KvCache cache;
  cache.format = format;
  cache.kv_heads = static_cast<int32_t>(graph_.num_kv_heads);
  cache.head_dim = static_cast<int32_t>(graph_.head_dim);
  cache.is_integers = kv_type_ == DType::kI16;
  const auto block_bytes = static_cast<size_t>(graph_.num_kv_heads * kv_head_bytes(cache));
  const size_t plane = block_bytes * static_cast<size_t>(num_blocks);
  const size_t planes = 2 * static_cast<size_t>(graph_.num_layers);
  kv_memory_ = DeviceBuffer(runtime_, plane * planes, "the KV cache");
  kv_planes_ = {kv_memory_.data(), plane, planes, block_bytes};
  for (int layer = 0; layer < graph_.num_layers; ++layer) {
    std::byte* keys = kv_memory_.data() + plane * 2 * static_cast<size_t>(layer);
    cache.keys = keys;
    cache.values = keys + plane;
    kv_.push_back(cache);
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

void PlanBuilder::begin_node(const OpNode& node, bool for_rows, bool behind_choice) {
  node_is_behind_choice_ = behind_choice;
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
    if (launch.forms == nullptr) return false;
    const size_t made = launch.follows_norm ? forms_of_norm(*launch.forms) : 0;
    return launch.forms->forms.size() <= made || launch.forms->is_made_as_bf16();
  });
  for (PlannedLaunch& launch : launches_) {
    const bool rounds = launch.forms != nullptr && launch.forms->forms.size() == 1 &&
                        launch.forms->forms.contains(kBf16Form);
    if (rounds) launch.what = "round_bf16";
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
  if (!matrix.is_packed || adapters_ != nullptr) rows.floats_are_read = true;
  if (!matrix.is_packed) return;
  std::byte*& form = rows.forms[matrix.form()];
  if (form != nullptr) return;
  const bool is_bf16 = matrix.form() == kBf16Form;
  const int64_t bytes = rows.capacity * (is_bf16 ? kernels::cuda::bf16_row_bytes(rows.width)
                                                 : kernels::cuda::int8_row_bytes(rows.width));
  form = memory_.emplace_back(runtime_, static_cast<size_t>(bytes), "activations").data();
  activation_bytes_ += static_cast<uint64_t>(bytes);
}

void PlanBuilder::add(Launch start, const std::string& what) {
  launches_.push_back({.start = std::move(start),
                       .for_rows = node_is_for_rows_,
                       .behind_choice = node_is_behind_choice_,
                       .condition = condition_,
                       .what = what,
                       .node = entries_.size()});
}

void PlanBuilder::add_forms(const RowsBuffer& rows, int32_t per_token, bool follows_norm) {
  // Which forms there are is known when all nodes are planned: those behind this one ask for them.
  add(
      [&rows, per_token, follows_norm](const StepMemory& memory, Stream stream) -> Status {
        const int64_t count =
            rows.is_head_input ? memory.shape.rows : int64_t{memory.shape.tokens} * per_token;
        const size_t made = follows_norm ? forms_of_norm(rows) : 0;
        for (auto form = std::next(rows.forms.begin(), static_cast<ptrdiff_t>(made));
             form != rows.forms.end(); ++form) {
          const float* x = rows.values(memory);
          const Status status = make_form(form->first, x, rows, count, form->second, stream);
          if (!status.ok()) return status;
        }
        return {};
      },
      "quantize");
  launches_.back().forms = &rows;
  launches_.back().follows_norm = follows_norm;
}

void PlanBuilder::add_forms(const RowsBuffer& rows, int32_t per_token) {
  add_forms(rows, per_token, false);
}
void PlanBuilder::add_further_forms(const RowsBuffer& rows) { add_forms(rows, 1, true); }

void PlanBuilder::add_product(const DeviceMatrix& matrix, RowsBuffer& in, Epilogue epilogue) {
  need(in, matrix);
  const bool writes_logits = epilogue.out == nullptr;
  add(
      [&matrix, &in, epilogue, writes_logits](const StepMemory& memory, Stream stream) {
        Epilogue own = epilogue;
        if (writes_logits) own.out = memory.logits;
        const Rows rows =
            rows_for(matrix, in, in.is_head_input ? memory.shape.rows : memory.shape.tokens);
        if (!matrix.is_packed) {
          return kernels::cuda::linear_float(matrix.floats, 1,
                                             {in.values(memory), in.stride, rows, 0}, own, stream);
        }
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
        const Epilogue epilogue = hidden.target();
        const Rows rows = rows_for(gate, in, memory.shape.tokens);
        if (!gate.is_packed) {
          return kernels::cuda::gate_up_float(
              gate.floats, up.floats, 1, {in.values(memory), in.width, rows, 0}, epilogue, stream);
        }
        return kernels::cuda::gate_up(gate.packed, up.packed, 1, rows, epilogue, {}, stream);
      },
      "gate_up_" + gate.kernel);
}

void PlanBuilder::add_gating(const kernels::Gating& gating, const RowsBuffer& gate,
                             const RowsBuffer& up, RowsBuffer& hidden, int64_t per_token) {
  add(
      [gating, &gate, &up, &hidden, per_token](const StepMemory& memory, Stream stream) {
        const Epilogue to = hidden.target();
        return kernels::cuda::apply_gating(gating, gate.data, up.data,
                                           memory.shape.tokens * per_token * hidden.width, to.out,
                                           to.out_format, stream);
      },
      "activate");
}

void PlanBuilder::finish_addend() {
  const std::optional<kernels::cuda::Addend> addend = take_addend();
  if (!addend.has_value()) return;
  const RowsBuffer& residual = value(graph_.stream());
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
