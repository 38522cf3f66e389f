// SPDX-License-Identifier: Apache-2.0
// Steps of a part of the depth, for a host and for early exit.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/run/exit_leads.h"
#include "engine/run/layer_words.h"
#include "engine/run/step_runner.h"

namespace vitrine::engine {

/// Not thread-safe.
class PartialSteps {
 public:
  /// Both must stay.
  PartialSteps(LoadedModel& model, StepRunner& runner) : model_(model), runner_(runner) {}

  /// Engine::step_layers(), without defaults.
  std::span<const StepOutput> step(std::span<const StepInput> inputs, LayerRange layers,
                                   std::span<const float> residual);
  /// Engine::residual_rows().
  std::span<const float> residual_rows() const;

  /// Makes room for leads, and for guesses of so many tokens in a pass.
  void prepare_guesses(size_t pass_tokens);
  /// Makes a step of some layers that is a guess: it takes drafts, too, and no recorder, tap or log
  /// is told of it.
  std::span<const StepOutput> guess(std::span<const StepInput> inputs, LayerRange layers,
                                    std::span<const float> residual);
  /// [tokens, bytes of a token's record] what a recorder would have been told of the last guess by
  /// its layers. Empty where none listens, or a lead needs no words.
  std::span<const std::byte> guessed_words() const { return guessed_words_; }
  /// Returns the words that some of the layers write.
  LayerWords words_of(LayerRange layers) const { return {model_.graph, model_.layout, layers}; }

 private:
  LayerRange whole(LayerRange layers) const {
    return {layers.first, layers.end < 0 ? model_.graph.num_layers : layers.end};
  }

  LoadedModel& model_;
  StepRunner& runner_;
  std::vector<std::byte> guess_record_;  // of the last pass of guesses
  std::span<const std::byte> guessed_words_;
};

}  // namespace vitrine::engine
