// SPDX-License-Identifier: Apache-2.0
#include "ops/plan.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "kernels/cpu/cpu_features.h"

namespace vitrine::ops {

using kernels::Weight;
using kernels::WeightFormat;

void RowBuffer::quantize(const kernels::CpuKernels& kernel, int64_t index, int64_t begin,
                         int64_t end) const {
  for (const auto& form : quantized) {
    const int64_t group = begin / form->group_size;
    kernel.quantize_row(row(index) + begin, end - begin, form->group_size,
                        form->values + index * form->stride() + begin,
                        form->scales + index * form->groups() + group,
                        form->sums + index * form->groups() + group);
  }
}

int32_t RowBuffer::largest_group() const {
  int32_t largest = 0;
  for (const auto& form : quantized) largest = std::max(largest, form->group_size);
  return largest;
}

PlanScratch::PlanScratch(PlanMemory& memory, const Graph& graph, const PlanShape& shape)
    : routes(static_cast<size_t>(graph.num_layers)),
      memory_(memory),
      values_(graph.values.size()),
      logits_(array<float>(shape.max_logits * graph.vocab_size)) {
  for (size_t i = 0; i < values_.size(); ++i) {
    const Value& value = graph.values[i];
    values_[i].width = value.width;
    values_[i].capacity = value.per_row ? shape.max_rows : shape.max_tokens;
    values_[i].data = array<float>(values_[i].capacity * value.width);
  }
}

RowBuffer& PlanScratch::shared_rows(const std::string& name, int64_t capacity, int64_t width) {
  std::unique_ptr<RowBuffer>& buffer = shared_buffers_[name + "/" + std::to_string(width)];
  if (buffer == nullptr) {
    buffer = std::make_unique<RowBuffer>();
    buffer->width = width;
    buffer->capacity = capacity;
    buffer->data = array<float>(capacity * width);
  }
  return *buffer;
}

void PlanScratch::need(RowBuffer& rows, const Weight& weight) {
  if (!is_quantized(weight)) return;
  for (const auto& form : rows.quantized) {
    if (form->group_size == weight.group_size) return;
  }
  auto form = std::make_unique<QuantizedRows>();
  form->group_size = weight.group_size;
  form->cols = rows.width;
  form->values = array<int8_t>(rows.capacity * form->stride());
  form->scales = array<float>(rows.capacity * form->groups());
  form->sums = array<kernels::GroupSum>(rows.capacity * form->groups());
  rows.quantized.push_back(std::move(form));
}

bool is_quantized(const Weight& weight) { return !kernels::is_float_format(weight.format); }

kernels::Activations activations(const RowBuffer& buffer, const Weight& weight) {
  kernels::Activations input;
  input.values = buffer.data;
  input.value_stride = buffer.width;
  if (!is_quantized(weight)) return input;
  for (const auto& form : buffer.quantized) {
    if (form->group_size != weight.group_size) continue;
    input.quantized = form->values;
    input.quantized_stride = form->stride();
    input.scales = form->scales;
    input.sums = form->sums;
    input.group_stride = form->groups();
  }
  return input;
}

uint64_t weight_bytes(const Weight& weight) {
  return weight.blocks == nullptr ? kernels::packed_bytes(weight).total()
                                  : kernels::stored_bytes(weight);
}

int64_t rows_per_piece(int64_t rows, int threads, int64_t multiple) {
  // Four pieces a thread even out a core that is taken away for a moment.
  const int64_t wanted = divide_up(rows, static_cast<int64_t>(threads) * 4);
  return std::max<int64_t>(divide_up(wanted, multiple) * multiple, multiple);
}

FormedMatrix PackedWeights::formed_matrix(const std::string& module, int64_t rows, int64_t cols,
                                          const int32_t* row_order) {
  if (row_order != nullptr) {
    throw Error(ErrorKind::kInternal, "rows of tensor '" + module + "' are asked for in an order");
  }
  return {.weight = &matrix(module, rows, cols), .form = {}};
}

const kernels::CpuKernels& select_cpu_kernels() {
  const char* forced = std::getenv("VITRINE_CPU_ISA");
  const auto tables = kernels::cpu_kernel_tables();
  if (forced == nullptr || *forced == '\0') return *tables.front();
  const std::string name = forced;
  for (const kernels::CpuKernels* table : tables) {
    if (name == table->isa) return *table;
  }
  for (const kernels::TableNeeds& table : kernels::kTableNeeds) {
    if (name != table.isa) continue;
    throw Error(ErrorKind::kUnavailable,
                "VITRINE_CPU_ISA is '" + name + "', but this processor lacks " +
                    kernels::feature_names(table.features & ~kernels::cpu_features()) +
                    "; unset it or use portable");
  }
  throw Error(ErrorKind::kInvalidArgument,
              "VITRINE_CPU_ISA is '" + name +
                  "'; expected avx512_amx, avx512, avx2_vnni, avx2 or portable, or unset it");
}

}  // namespace vitrine::ops
