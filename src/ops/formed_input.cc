// SPDX-License-Identifier: Apache-2.0
#include "ops/formed_input.h"

#include <algorithm>

namespace vitrine::ops {
namespace {

/// Rows that all layers share. Kernels fill each up to its stride.
QuantizedRows shared_int8_rows(PlanScratch& scratch, const std::string& role, int64_t capacity,
                               int64_t cols, int32_t group_size) {
  const std::string name = "formed_" + role + "/" + std::to_string(group_size);
  QuantizedRows rows;
  rows.group_size = group_size;
  rows.cols = cols;
  rows.values = scratch.shared_array<int8_t>(name + "/values", capacity * rows.stride());
  rows.scales = scratch.shared_array<float>(name + "/scales", capacity * rows.groups());
  rows.sums = scratch.shared_array<kernels::GroupSum>(name + "/sums", capacity * rows.groups());
  return rows;
}

/// Makes an int8 row. With an order its element i is `from`[order[i]], and groups are quantized as
/// those of any row.
void make_row(const kernels::CpuKernels& kernel, const float* from, const InputForm& form,
              const QuantizedRows& to, int64_t row) {
  if (form.order == nullptr) {
    const int64_t group = row * to.groups();
    kernel.quantize_whole_row(from, to.cols, to.group_size, form.row_scale,
                              to.values + row * to.stride(), to.scales + group, to.sums + group);
    return;
  }
  constexpr int64_t kPart = 1024;  // whole groups of any size
  alignas(64) float part[kPart];
  for (int64_t begin = 0; begin < to.cols; begin += kPart) {
    const int64_t count = std::min(kPart, to.cols - begin);
    for (int64_t i = 0; i < count; ++i) part[i] = from[form.order[begin + i]];
    const int64_t group = row * to.groups() + begin / to.group_size;
    kernel.quantize_row(part, count, to.group_size, to.values + row * to.stride() + begin,
                        to.scales + group, to.sums + group);
  }
}

bool is_same(const InputForm& one, const InputForm& other, int64_t cols) {
  return one.row_scale == other.row_scale &&
         (one.order == nullptr || other.order == nullptr
              ? one.order == other.order
              : std::equal(one.order, one.order + cols, other.order));
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

const kernels::Weight* FormedInput::need(PlanScratch& scratch, const FormedMatrix& matrix) {
  const kernels::Weight& weight = *matrix.weight;
  if (!matrix.form.is_own()) {
    scratch.need(in_, weight);
    return &weight;
  }
  kinds_.add(matrix.form);
  size_t form = 0;
  while (form < forms_.size() && (forms_[form].rows.group_size != weight.group_size ||
                                  !is_same(matrix.form, forms_[form].form, weight.cols))) {
    ++form;
  }
  if (form == forms_.size()) {
    const std::string name = role_ + "_" + std::to_string(form);
    forms_.push_back({matrix.form, shared_int8_rows(scratch, name, in_.capacity, weight.cols,
                                                    weight.group_size)});
  }
  uses_.push_back({&weight, form});
  return &weight;
}

void FormedInput::quantize(int64_t row) const {
  for (const Form& form : forms_) {
    make_row(kernel_, in_.row(row), form.form, form.rows, row);
  }
}

Phase FormedInput::phase(int32_t StepState::*rows) const {
  constexpr int64_t kRowsPerPiece = 4;
  return {"form",
          [this, rows](const StepState& step) {
            return empty() ? 0 : divide_up(step.*rows, kRowsPerPiece);
          },
          [this, rows](const StepState& step, int64_t piece) {
            const int64_t end = std::min<int64_t>(step.*rows, (piece + 1) * kRowsPerPiece);
            for (int64_t row = piece * kRowsPerPiece; row < end; ++row) quantize(row);
          }};
}

kernels::Activations FormedInput::activations(const kernels::Weight& weight) const {
  for (const Use& use : uses_) {
    if (use.weight == &weight) return activations_of(forms_[use.form].rows);
  }
  return ops::activations(in_, weight);
}

void FormedSlots::need(PlanScratch& scratch, int64_t expert, const FormedMatrix& matrix) {
  if (!matrix.form.is_own()) return;
  kinds_.add(matrix.form);
  const int32_t group_size = matrix.weight->group_size;
  size_t rows = 0;
  while (rows < rows_.size() && rows_[rows].group_size != group_size) ++rows;
  if (rows == rows_.size()) {
    rows_.push_back(shared_int8_rows(scratch, role_, slots_, cols_, group_size));
  }
  uses_[static_cast<size_t>(expert)] = {matrix.form, rows};
}

void FormedSlots::quantize(int32_t expert, int64_t slot, const float* row) const {
  const Use& use = of(expert);
  if (use.form.is_own()) make_row(kernel_, row, use.form, rows_[use.rows], slot);
}

kernels::Activations FormedSlots::activations(int32_t expert) const {
  return activations_of(rows_[of(expert).rows]);
}

}  // namespace vitrine::ops
