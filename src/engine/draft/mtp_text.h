// SPDX-License-Identifier: Apache-2.0
// A text that MTP layers follow. A layer reads pairs. A pair of the first layer is the row that the
// model computed at a token, and the token behind that. A pair of a further layer is the row that
// the layer before gave for its pair, and the token that stands one further behind.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "vitrine/step.h"

namespace vitrine::engine {

/// Keeps the text's tokens, and each layer's rows until both parts of their pair are there and the
/// pair was run. Layers are counted from 0. Not thread-safe.
class MtpText {
 public:
  /// `sequences` has one for each layer.
  MtpText(std::vector<SequenceId> sequences, int64_t hidden_size, int64_t max_tokens);

  void append(std::span<const int32_t> tokens);
  void truncate(int64_t length);
  /// Adds `count` rows of a layer at positions from `first` on; where these begin behind a gap, the
  /// pairs before the gap are forgotten. Returns where the caller writes them, [rows, hidden],
  /// valid until the text changes.
  std::span<float> add_rows(size_t layer, int64_t first, int64_t count);
  /// Forgets the rows of layers behind the first that come of the model's rows from `first` on.
  void forget_outputs(int64_t first);

  /// Return how many pairs can be run, one behind another, and the tokens and rows of the first
  /// `count` of these.
  int64_t num_ready(size_t layer) const;
  std::span<const int32_t> ready_tokens(size_t layer, int64_t count) const;
  std::span<const float> ready_rows(size_t layer, int64_t count) const {
    return std::span(layers_[layer].rows).first(static_cast<size_t>(count * hidden_));
  }
  /// Returns [rows, hidden], those of the ready pairs and those whose tokens are not known yet.
  std::span<const float> rows(size_t layer) const { return layers_[layer].rows; }
  /// Returns the position of the next pair.
  int64_t next(size_t layer) const { return layers_[layer].begin + layers_[layer].run; }
  /// Takes away the rows of the first `count` ready pairs, which were run.
  void take(size_t layer, int64_t count);
  /// Returns true where the first layer, with its ready pairs, will have run all pairs whose tokens
  /// the text has.
  bool is_complete() const { return next(0) + num_ready(0) == std::ssize(tokens_) - 1; }
  /// Returns how many pairs were run and still hold, which is what the layer's sequence holds of
  /// the text.
  int64_t num_run(size_t layer) const { return layers_[layer].run; }

  /// Bytes of tokens and rows.
  uint64_t bytes() const;
  size_t num_layers() const { return layers_.size(); }
  SequenceId sequence(size_t layer) const { return layers_[layer].sequence; }
  void set_sequence(size_t layer, SequenceId sequence) { layers_[layer].sequence = sequence; }

  const std::atomic<bool>* cancelled = nullptr;  // the flag of the text's answer
  std::vector<int32_t> guessed;  // tokens that are guessed behind the text as it stands
  std::vector<float> output;     // [hidden] of the pair behind which the last of `guessed` stands
  // [rows, hidden] that a layer gave for pairs whose tokens are guessed, up to that of `output`.
  std::vector<float> guessed_rows;

 private:
  struct Layer {
    SequenceId sequence = 0;
    int64_t begin = 0, run = 0;  // the position of the first pair; pairs that were run
    std::vector<float> rows;     // [rows, hidden] from that of the next pair on
  };

  int64_t num_rows(const Layer& layer) const { return std::ssize(layer.rows) / hidden_; }
  void forget_rows(Layer& layer, int64_t first) const;
  void cut(Layer& layer, int64_t first) const;

  int64_t hidden_;
  std::vector<int32_t> tokens_;
  std::vector<Layer> layers_;
};

}  // namespace vitrine::engine
