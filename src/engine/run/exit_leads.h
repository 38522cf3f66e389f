// SPDX-License-Identifier: Apache-2.0
// Leads are guesses whose first layers have run. Lower layers have seen their tokens, which their
// sequences do not hold. A step that brings these tokens goes on behind those layers.
#pragma once

#include <span>
#include <vector>

#include "engine/run/layer_words.h"
#include "engine/run/running_step.h"
#include "kv/block_pool.h"
#include "vitrine/step.h"

namespace vitrine::engine {

/// What the layers before an exit made of tokens.
struct ExitRows {
  std::vector<float> residual;   // [tokens, hidden_size] what left them
  std::vector<std::byte> words;  // [tokens, bytes of a token's record] theirs; empty: none kept

  void clear() {
    residual.clear();
    words.clear();
  }
};

/// The leads of one exit. Their keys and values stand behind the positions of their sequences, in
/// blocks that these hold, so that they are good until the next step. Not thread-safe.
class ExitLeads {
 public:
  /// Makes room for so many tokens in all.
  void reserve(size_t tokens, size_t hidden_size, size_t record_bytes);
  void clear() { entries_.clear(); }
  /// Forgets all. Those that follow have seen the layers before this one, which write these words.
  void begin(int layer, const LayerWords& words);
  /// Adds such tokens behind `past` positions of a sequence, or nothing where there is no room.
  void add(SequenceId sequence, int64_t past, std::span<const int32_t> tokens,
           const ExitRows& rows);
  /// Returns whether each input of a step brings tokens that begin a lead, with words where these
  /// are needed, in a sequence that is as it was. lead() and copy_words() serve that step then.
  /// Forgets all.
  bool take(std::span<const StepInput> inputs, const kv::BlockPool& pool, bool needs_words);
  /// Lets the step that was taken go on behind the layers that its lead has run.
  void lead(RunningStep& step) const {
    step.first_layer = layer_;
    step.residual = taken_.residual.data();
  }
  /// Writes the words of these layers to the records of the step's tokens.
  void copy_words(std::byte* records) const {
    layer_words_.copy(taken_.words.data(), records, taken_.words.size() / record_bytes_);
  }
  /// Returns how many steps went on behind a lead.
  int64_t num_taken() const { return num_taken_; }

 private:
  struct Entry {
    SequenceId sequence = 0;
    int64_t past = 0;
    size_t first = 0, count = 0;  // of tokens_
  };
  const Entry* find(const StepInput& input, const kv::BlockPool& pool) const;

  int layer_ = 0;
  size_t hidden_size_ = 0, record_bytes_ = 0, max_tokens_ = 0;
  int64_t num_taken_ = 0;
  std::vector<Entry> entries_;
  std::vector<int32_t> tokens_;
  ExitRows rows_, taken_;
  LayerWords layer_words_;
};

}  // namespace vitrine::engine
