// SPDX-License-Identifier: Apache-2.0
// Inputs of matrices whose columns have an order of their own: int8 rows, made through that order.
// They stand in scratch that all layers share, since an order is a layer's own.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ops/plan.h"

namespace vitrine::ops {

/// Whether an op of this type multiplies matrices in the order of their columns. Others, which look
/// rows up or guess a later layer's, have the file's order, and floats where it is act-order.
inline bool takes_order(const OpNode& node) {
  constexpr std::string_view kTypes[] = {"qkv", "project", "dense_ffn", "experts", "head"};
  return std::find(std::begin(kTypes), std::end(kTypes), node.type) != std::end(kTypes);
}

/// What all tokens of one op's input are multiplied with: one form for each order and group size.
class OrderedInput {
 public:
  /// `role` tells inputs of one op apart.
  OrderedInput(const kernels::CpuKernels& kernel, RowBuffer& in, std::string role)
      : kernel_(kernel), in_(in), role_(std::move(role)) {}

  /// While planning: asks for the rows that the matrix is multiplied with, of the input's producer
  /// or of phase(). Returns its handle.
  const kernels::Weight* need(PlanScratch& scratch, const OrderedMatrix& matrix);
  /// True where no matrix has an order of its own.
  bool empty() const { return uses_.empty(); }
  /// Makes the forms of a row.
  void quantize(int64_t row) const;
  /// Makes those of all rows of a step, which it has `rows` of; in front of what reads them.
  Phase phase(int32_t StepState::*rows = &StepState::tokens) const;
  /// Returns the input of a matrix that was asked for, as ops::activations.
  kernels::Activations activations(const kernels::Weight& weight) const;

 private:
  struct Form {
    const int32_t* order = nullptr;
    QuantizedRows rows;
  };
  struct Use {
    const kernels::Weight* weight = nullptr;
    size_t form = 0;
  };

  const kernels::CpuKernels& kernel_;
  RowBuffer& in_;
  std::string role_;
  std::vector<Form> forms_;
  std::vector<Use> uses_;
};

/// Rows of slots, each in the order of its expert's matrix.
class OrderedSlots {
 public:
  OrderedSlots(const kernels::CpuKernels& kernel, std::string role, int64_t slots, int64_t cols,
               int64_t experts)
      : kernel_(kernel),
        role_(std::move(role)),
        slots_(slots),
        cols_(cols),
        uses_(static_cast<size_t>(experts)) {}

  /// While planning.
  void need(PlanScratch& scratch, int64_t expert, const OrderedMatrix& matrix);
  /// True where no expert's matrix has an order of its own.
  bool empty() const { return forms_.empty(); }
  bool has(int32_t expert) const { return of(expert).order != nullptr; }
  /// Makes the row of a slot, where its expert has an order.
  void quantize(int32_t expert, int64_t slot, const float* row) const;
  /// Returns the rows of an expert that has one, by slot.
  kernels::Activations activations(int32_t expert) const;

 private:
  struct Use {
    const int32_t* order = nullptr;
    size_t form = 0;
  };
  const Use& of(int32_t expert) const { return uses_[static_cast<size_t>(expert)]; }

  const kernels::CpuKernels& kernel_;
  std::string role_;
  int64_t slots_, cols_;
  std::vector<QuantizedRows> forms_;  // by group size
  std::vector<Use> uses_;             // by expert
};

}  // namespace vitrine::ops
