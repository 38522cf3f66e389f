// SPDX-License-Identifier: Apache-2.0
// Stages that draw, and how they check guesses by rejection sampling (Leviathan et al., "Fast
// Inference from Transformers via Speculative Decoding", 2023).
#pragma once

#include <cstdint>
#include <span>

#include "candidates.h"

namespace vitrine {

/// A selection that draws from probabilities p. Where it checks guesses and one stands at the
/// position, the guess x is chosen with p(x), else another token by p without x: what is chosen has
/// the distribution p, whatever was guessed.
class DrawingStage : public RoomStage {
 public:
  /// Checks guesses from now on: the choices have no device form then.
  void check_drafts() { checks_drafts_ = true; }
  /// The guesses for positions from `first` on; none stands at others. Not copied: the tokens must
  /// stay until the next call.
  void set_drafts(int64_t first, std::span<const int32_t> tokens) {
    first_ = first;
    drafts_ = tokens;
  }
  bool has_device_form() const override { return !checks_drafts_; }

 protected:
  /// Selects a candidate by `weights` [candidates], probabilities but for their sum, and returns
  /// its probability among them. Changes the weights.
  double draw(Candidates& candidates, std::span<double> weights,
              const SampleContext& context) const;

 private:
  /// The index of the guess among the candidates; their number where there is none.
  size_t find_draft(const Candidates& candidates, int64_t position) const;

  bool checks_drafts_ = false;
  int64_t first_ = 0;
  std::span<const int32_t> drafts_;
};

/// The stage that draws at the end of a pipeline; null where it ends otherwise (greedy).
DrawingStage* find_drawing_stage(const SamplerPipeline& pipeline);

}  // namespace vitrine
