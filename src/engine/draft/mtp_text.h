// SPDX-License-Identifier: Apache-2.0
// A text that MTP layers follow. What the first layer reads are pairs: what a model computed at a
// token, and the token behind that; what a further one reads: what the layer before it gave there,
// and the token that stands one further behind.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "vitrine/step.h"

namespace vitrine::engine {

/// Keeps tokens, and for each layer rows until both of a pair are there and it was run. Layers are
/// counted from 0. Not thread-safe.
class MtpText {
 public:
  /// `sequences`: one of each layer's.
  MtpText(std::vector<SequenceId> sequences, int64_t hidden_size, int64_t max_tokens);

  void append(std::span<const int32_t> tokens);
  void truncate(int64_t length);
  /// [rows, hidden] at positions from `first` on; where these begin behind a gap, the pairs before
  /// it are forgotten. Returns where the caller writes them; valid until the text changes.
  std::span<float> add_rows(size_t layer, int64_t first, int64_t count);
  /// Of the layers behind the first, forgets what comes of the model's rows from `first` on.
  void forget_outputs(int64_t first);

  /// Pairs that can be run, one behind another; their tokens and rows.
  int64_t num_ready(size_t layer) const;
  std::span<const int32_t> ready_tokens(size_t layer, int64_t count) const;
  std::span<const float> ready_rows(size_t layer, int64_t count) const {
    return std::span(layers_[layer].rows).first(static_cast<size_t>(count * hidden_));
  }
  /// [rows, hidden] those of the ready pairs, and of tokens that are not known yet.
  std::span<const float> rows(size_t layer) const { return layers_[layer].rows; }
  /// The position of the next pair.
  int64_t next(size_t layer) const { return layers_[layer].begin + layers_[layer].run; }
  /// The first `count` of these were run.
  void take(size_t layer, int64_t count);
  /// With the pairs of the first layer that are ready all are run whose tokens the text has.
  bool is_complete() const { return next(0) + num_ready(0) == std::ssize(tokens_) - 1; }
  /// Pairs that were run and stand: what the layer's sequence holds of the text.
  int64_t num_run(size_t layer) const { return layers_[layer].run; }

  /// Bytes of tokens and rows.
  uint64_t bytes() const;
  size_t num_layers() const { return layers_.size(); }
  SequenceId sequence(size_t layer) const { return layers_[layer].sequence; }
  void set_sequence(size_t layer, SequenceId sequence) { layers_[layer].sequence = sequence; }

  const std::atomic<bool>* cancelled = nullptr;  // of its answer
  std::vector<int32_t> guessed;                  // behind the text as it stands
  std::vector<float> output;  // [hidden] of the pair behind which the last of these stands
  // [rows, hidden] that a layer gave for pairs whose tokens are guessed, up to that one
  std::vector<float> guessed_rows;

 private:
  struct Layer {
    SequenceId sequence = 0;
    int64_t begin = 0, run = 0;  // the position of the first pair; pairs that were run
    std::vector<float> rows;     // [rows, hidden] from the next pair's on
  };

  int64_t num_rows(const Layer& layer) const { return std::ssize(layer.rows) / hidden_; }
  void forget_rows(Layer& layer, int64_t first) const;
  void cut(Layer& layer, int64_t first) const;

  int64_t hidden_;
  std::vector<int32_t> tokens_;
  std::vector<Layer> layers_;
};

}  // namespace vitrine::engine
