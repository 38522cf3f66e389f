// SPDX-License-Identifier: Apache-2.0
#include "ops/ordered_input.h"

#include <algorithm>

namespace vitrine::ops {
namespace {

/// Rows that all layers share. Kernels fill each up to its stride.
QuantizedRows shared_int8_rows(PlanScratch& scratch, const std::string& role, int64_t capacity,
                               int64_t cols, int32_t group_size) {
  const std::string name = "ordered_" + role + "/" + std::to_string(group_size);
  QuantizedRows rows;
  rows.group_size = group_size;
  rows.cols = cols;
  rows.values = scratch.shared_array<int8_t>(name + "/values", capacity * rows.stride());
  rows.scales = scratch.shared_array<float>(name + "/scales", capacity * rows.groups());
  rows.sums = scratch.shared_array<kernels::GroupSum>(name + "/sums", capacity * rows.groups());
  return rows;
}

/// Element i of the int8 row is `from`[order[i]]. Groups are quantized as those of any row.
void quantize_in_order(const kernels::CpuKernels& kernel, const float* from, const int32_t* order,
                       const QuantizedRows& to, int64_t row) {
  constexpr int64_t kPart = 1024;  // whole groups of any size
  alignas(64) float part[kPart];
  for (int64_t begin = 0; begin < to.cols; begin += kPart) {
    const int64_t count = std::min(kPart, to.cols - begin);
    for (int64_t i = 0; i < count; ++i) part[i] = from[order[begin + i]];
    const int64_t group = row * to.groups() + begin / to.group_size;
    kernel.quantize_row(part, count, to.group_size, to.values + row * to.stride() + begin,
                        to.scales + group, to.sums + group);
  }
}

kernels::Activations activations_of(const QuantizedRows& rows) {
  kernels::Activations input;
  input.quantized = rows.values;
  input.quantized_stride = rows.stride();
  input.scales = rows.scales;
  input.sums = rows.sums;
  input.group_stride = rows.groups();
  return input;
}

}  // namespace

const kernels::Weight* OrderedInput::need(PlanScratch& scratch, const OrderedMatrix& matrix) {
  const kernels::Weight& weight = *matrix.weight;
  if (matrix.order == nullptr) {
    scratch.need(in_, weight);
    return &weight;
  }
  size_t form = 0;
  while (form < forms_.size() &&
         (forms_[form].rows.group_size != weight.group_size ||
          !std::equal(matrix.order, matrix.order + weight.cols, forms_[form].order))) {
    ++form;
  }
  if (form == forms_.size()) {
    const std::string name = role_ + "_" + std::to_string(form);
    forms_.push_back({matrix.order, shared_int8_rows(scratch, name, in_.capacity, weight.cols,
                                                     weight.group_size)});
  }
  uses_.push_back({&weight, form});
  return &weight;
}

void OrderedInput::quantize(int64_t row) const {
  for (const Form& form : forms_) {
    quantize_in_order(kernel_, in_.row(row), form.order, form.rows, row);
  }
}

Phase OrderedInput::phase(int32_t StepState::*rows) const {
  constexpr int64_t kRowsPerPiece = 4;
  return {"order",
          [this, rows](const StepState& step) {
            return empty() ? 0 : divide_up(step.*rows, kRowsPerPiece);
          },
          [this, rows](const StepState& step, int64_t piece) {
            const int64_t end = std::min<int64_t>(step.*rows, (piece + 1) * kRowsPerPiece);
            for (int64_t row = piece * kRowsPerPiece; row < end; ++row) quantize(row);
          }};
}

kernels::Activations OrderedInput::activations(const kernels::Weight& weight) const {
  for (const Use& use : uses_) {
    if (use.weight == &weight) return activations_of(forms_[use.form].rows);
  }
  return ops::activations(in_, weight);
}

void OrderedSlots::need(PlanScratch& scratch, int64_t expert, const OrderedMatrix& matrix) {
  if (matrix.order == nullptr) return;
  const int32_t group_size = matrix.weight->group_size;
  size_t form = 0;
  while (form < forms_.size() && forms_[form].group_size != group_size) ++form;
  if (form == forms_.size()) {
    forms_.push_back(shared_int8_rows(scratch, role_, slots_, cols_, group_size));
  }
  uses_[static_cast<size_t>(expert)] = {matrix.order, form};
}

void OrderedSlots::quantize(int32_t expert, int64_t slot, const float* row) const {
  const Use& use = of(expert);
  if (use.order != nullptr) quantize_in_order(kernel_, row, use.order, forms_[use.form], slot);
}

kernels::Activations OrderedSlots::activations(int32_t expert) const {
  return activations_of(forms_[of(expert).form]);
}

}  // namespace vitrine::ops
