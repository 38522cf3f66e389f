// SPDX-License-Identifier: Apache-2.0
// The step under way, for all who have a part in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/cancel_watch.h"
#include "engine/run/executor.h"
#include "engine/run/step_rows.h"
#include "ops/graph.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// The part of a model's depth that a step runs.
struct StepPart {
  LayerRange layers = {};                // `end` is a layer here
  std::span<const float> residual = {};  // [tokens, hidden_size] what left the layer below; empty
                                         // where there is none
  std::byte* guess_words = nullptr;      // where a pass of guesses writes its words; null: nowhere
};

/// One step, from its inputs to what its pass gave. It stays readable until the next one begins.
struct RunningStep {
  /// What an input's sequence brings.
  struct Part {
    SequenceId sequence = 0;
    int64_t past = 0;  // its positions before the step
    int32_t first_token = 0, num_tokens = 0;
  };

  core::CancelWatch watch;
  SequenceId blamed = 0;  // whose input it failed for; 0: it failed for all
  const float* residual =
      nullptr;  // [tokens, hidden_size] behind layer 0: what the pass begins with
  std::byte* guess_words = nullptr;
  std::span<const StepInput> inputs;
  std::vector<Part> parts;   // by input; none where it failed
  std::vector<int32_t> ids;  // [rows] chosen ones, where nobody records
  StepRows rows;
  PassOutput pass;
  StepBatch batch;
  int first_layer = 0;  // of the pass; a lead has run the layers before it
  LayerRange layers;    // that its sequences go through

  /// Allocates for the largest step.
  void reserve(const EngineOptions& options) {
    const auto tokens = static_cast<size_t>(options.max_step_tokens);
    const auto num_rows = static_cast<size_t>(options.max_logit_rows);
    const auto sequences = static_cast<size_t>(options.max_sequences);
    watch.reserve(sequences);
    parts.reserve(tokens);
    rows.reserve(tokens, num_rows, tokens);
    batch.reserve(tokens, num_rows, sequences + tokens);
    ids.resize(num_rows);
  }
  /// Begins with inputs that have been checked, before anything of the step has happened. Throws
  /// kCancelled.
  void begin(std::span<const StepInput> given, const StepPart& part,
             const std::atomic<bool>* cancelled) {
    inputs = given;
    layers = part.layers;
    first_layer = layers.first;
    residual = part.residual.data();
    guess_words = part.guess_words;
    watch.begin();
    watch.add(cancelled);
    for (const StepInput& input : inputs) watch.add(input.cancelled);
    watch.check();
    batch.watch = watch.is_idle() ? nullptr : &watch;
  }

  const StepInput& input_of(const StepRow& row) const {
    return inputs[static_cast<size_t>(row.input)];
  }
  const StepInput& input_of(size_t row) const { return input_of(rows[row]); }
  /// Returns where the words of a pass go that nobody records.
  std::byte* own_words() { return reinterpret_cast<std::byte*>(ids.data()); }
  bool is_whole(const ops::Graph& graph) const {
    return begins_at_bottom() && layers.end == graph.num_layers;
  }
  bool begins_at_bottom() const { return layers.first == 0; }
  /// Returns whether a lead has run layers of the step before its pass.
  bool is_led() const { return first_layer > layers.first; }
  /// Returns whether the device chooses the row's token by a sampler's steps.
  bool has_steps(size_t row) const {
    return row < batch.row_steps.size() && batch.row_steps[row] != nullptr;
  }
};

}  // namespace vitrine::engine
