// SPDX-License-Identifier: Apache-2.0
// A text that an MTP layer follows. What the layer reads are pairs: what a model computed at a
// token, and the token behind that.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "vitrine/step.h"

namespace vitrine::engine {

/// Keeps tokens and rows until both of a pair are there and it was run. Not thread-safe.
class MtpText {
 public:
  MtpText(SequenceId layer_sequence, int64_t hidden_size, int64_t max_tokens);

  void append(std::span<const int32_t> tokens);
  void truncate(int64_t length);
  /// [rows, hidden] at positions from `first` on; where these begin behind a gap, the pairs before
  /// it are forgotten. Returns where the caller writes them; valid until the text changes.
  std::span<float> add_rows(int64_t first, int64_t count);

  /// Pairs that can be run, one behind another; their tokens and rows.
  int64_t num_ready() const;
  std::span<const int32_t> ready_tokens(int64_t count) const;
  std::span<const float> ready_rows(int64_t count) const;
  /// The first `count` of these were run.
  void take(int64_t count);
  /// With the pairs that are ready all are run whose tokens the text has.
  bool is_complete() const;
  /// Pairs that were run and stand: what the layer's sequence holds of the text.
  int64_t num_run() const { return run_; }

  SequenceId sequence = 0;       // the layer's
  std::vector<int32_t> guessed;  // behind the text as it stands
  std::vector<float> output;     // [hidden] of the pair behind which the last of these stands

 private:
  int64_t next() const { return begin_ + run_; }  // the position of the next pair
  int64_t num_rows() const { return std::ssize(rows_) / hidden_; }
  void forget_rows(int64_t first);

  int64_t hidden_;
  std::vector<int32_t> tokens_;
  int64_t begin_ = 0, run_ = 0;  // the position of the first pair; pairs that were run
  std::vector<float> rows_;      // [rows, hidden] from the next pair's on
};

}  // namespace vitrine::engine
