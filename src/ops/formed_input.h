// SPDX-License-Identifier: Apache-2.0
// Inputs of matrices that want a form of their own: int8 rows in the order of a matrix's columns,
// or with one scale for a row. They stand in scratch that all layers share, since a form is a
// layer's own.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/plan.h"

namespace vitrine::ops {

/// Says whether an op of this type multiplies matrices in the order of their columns, and with the
/// scales that the file asks for. Others, which look rows up or guess a later layer's, have the
/// file's order, and floats where it is act-order.
inline bool takes_form(const OpNode& node) {
  constexpr std::string_view kTypes[] = {"qkv", "project", "dense_ffn", "experts", "head"};
  return std::find(std::begin(kTypes), std::end(kTypes), node.type) != std::end(kTypes);
}

/// Collects which forms an op's matrices have, and says how a plan names them.
struct FormKinds {
  bool order = false;
  bool row_scale = false;

  void add(const InputForm& form) {
    order = order || form.order != nullptr;
    row_scale = row_scale || form.row_scale != InputForm::kByGroup;
  }
  bool any() const { return order || row_scale; }
  std::string name() const {
    return std::string(order ? "+order" : "") + (row_scale ? "+row_scale" : "");
  }
};

/// Makes what all tokens of one op's input are multiplied with: a row for each form and group size.
class FormedInput {
 public:
  /// `role` tells inputs of one op apart.
  FormedInput(const kernels::CpuKernels& kernel, RowBuffer& in, std::string role)
      : kernel_(kernel), in_(in), role_(std::move(role)) {}

  /// While planning: asks for the rows that the matrix is multiplied with, of the input's producer
  /// or of phase(). Returns its handle.
  const kernels::Weight* need(PlanScratch& scratch, const FormedMatrix& matrix);
  /// Returns those of the op's matrices; none: their input's producer makes all rows.
  const FormKinds& kinds() const { return kinds_; }
  bool empty() const { return !kinds_.any(); }
  /// Makes the forms of a row.
  void quantize(int64_t row) const;
  /// Makes those of all rows of a step, which it has `rows` of; in front of what reads them.
  Phase phase(int32_t StepState::*rows = &StepState::tokens) const;
  /// Returns the input of a matrix that was asked for, as ops::activations.
  kernels::Activations activations(const kernels::Weight& weight) const;

 private:
  struct Form {
    InputForm form;
    QuantizedRows rows;
  };
  struct Use {
    const kernels::Weight* weight = nullptr;
    size_t form = 0;
  };

  const kernels::CpuKernels& kernel_;
  RowBuffer& in_;
  std::string role_;
  FormKinds kinds_;
  std::vector<Form> forms_;
  std::vector<Use> uses_;
};

/// Rows of slots, each in the form of its expert's matrix.
class FormedSlots {
 public:
  FormedSlots(const kernels::CpuKernels& kernel, std::string role, int64_t slots, int64_t cols,
              int64_t experts)
      : kernel_(kernel),
        role_(std::move(role)),
        slots_(slots),
        cols_(cols),
        uses_(static_cast<size_t>(experts)) {}

  /// While planning.
  void need(PlanScratch& scratch, int64_t expert, const FormedMatrix& matrix);
  /// Returns those of the experts' matrices.
  const FormKinds& kinds() const { return kinds_; }
  bool empty() const { return !kinds_.any(); }
  bool has(int32_t expert) const { return of(expert).form.is_own(); }
  /// Makes the row of a slot, where its expert has a form of its own.
  void quantize(int32_t expert, int64_t slot, const float* row) const;
  /// Returns the rows of an expert that has one, by slot.
  kernels::Activations activations(int32_t expert) const;

 private:
  struct Use {
    InputForm form;
    size_t rows = 0;
  };
  const Use& of(int32_t expert) const { return uses_[static_cast<size_t>(expert)]; }

  const kernels::CpuKernels& kernel_;
  std::string role_;
  int64_t slots_, cols_;
  FormKinds kinds_;
  std::vector<QuantizedRows> rows_;  // by group size
  std::vector<Use> uses_;            // by expert
};

/// Returns how a plan names the forms of an op with several inputs.
template <typename... Inputs>
std::string form_name(const Inputs&... inputs) {
  return FormKinds{(inputs.kinds().order || ...), (inputs.kinds().row_scale || ...)}.name();
}

}  // namespace vitrine::ops
