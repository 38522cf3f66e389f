// SPDX-License-Identifier: Apache-2.0
// What adapters add to routed experts: low-rank products of each expert and adapter that met in a
// step, on the slots that both have.
#pragma once

#include <array>
#include <vector>

#include "ops/feed_forward.h"

namespace vitrine::ops {

/// The adapters' part of one layer's experts. Slots are token * top_k + slot, as in `experts`.
class ExpertAdapters {
 public:
  /// The three matrices of an expert that adapters may change, by what reads them.
  enum Matrix : size_t { kGate, kUp, kDown };

  /// `modules`: by expert.
  ExpertAdapters(PlanContext& context, const std::vector<ExpertModules>& modules, int64_t top_k);

  /// True where no adapter changes an expert here.
  bool empty() const { return !changes_inner_ && !changes_outer_; }
  /// Gate and up stand by themselves in this step, so that something can be added to them.
  bool splits(const StepState& step) const { return changes_inner_ && step.num_adapters > 0; }

  /// Before the rest: finds the pairs of an expert and an adapter. `slot_of` has the slots expert
  /// by expert, in token order, those of expert e from begin[e] on.
  void group(const StepState& step, const int32_t* begin, const int32_t* slot_of);

  /// Gate and up: first a x, then scale * b of that, added to gate() and up(). Down likewise.
  int64_t inner_pieces(int half) const;
  void run_inner(const RowBuffer& in, int half, int64_t piece) const;
  int64_t outer_pieces(int half) const;
  void run_outer(const RowBuffer& hidden, const RowBuffer& slots, int half, int64_t piece) const;

  /// [slots, intermediate] before the activation.
  RowBuffer& gate() const { return *before_[kGate]; }
  RowBuffer& up() const { return *before_[kUp]; }
  uint64_t weight_bytes() const { return weight_bytes_; }

 private:
  struct Pair {
    int32_t expert = 0, adapter = 0;
    int32_t first = 0, count = 0;  // in slots_
  };
  static constexpr int64_t kRowsPerPiece = 256;

  const LowRankMatrix* find(Matrix matrix, const Pair& pair) const {
    return matrices_[matrix][static_cast<size_t>(pair.expert) * adapters_ +
                             static_cast<size_t>(pair.adapter)];
  }
  void run(Matrix matrix, const Pair& pair, int half, int64_t block, const RowBuffer& from,
           const int32_t* from_rows, const RowBuffer& to) const;

  const kernels::CpuKernels& kernel_;
  size_t adapters_ = 0;
  int64_t hidden_size_ = 0, intermediate_ = 0;
  int32_t top_k_ = 0, num_experts_ = 0;
  std::array<std::vector<const LowRankMatrix*>, 3> matrices_;  // [experts, adapters]
  std::array<RowBuffer*, 2> before_{};
  std::array<RowBuffer*, 3> low_{};  // [slots, largest rank]: a x
  int32_t* adapter_of_ = nullptr;    // [tokens] -1: none
  int32_t* slots_ = nullptr;         // [slots] pair by pair
  int32_t* tokens_ = nullptr;        // [slots] theirs
  std::vector<Pair> pairs_;          // of the step
  bool changes_inner_ = false, changes_outer_ = false;
  uint64_t weight_bytes_ = 0;
};

}  // namespace vitrine::ops
