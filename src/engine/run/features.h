// SPDX-License-Identifier: Apache-2.0
// The residual stream of a step's tokens, for drafters that read it (Stepper::features).
#pragma once

#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ops/graph.h"
#include "ops/taps.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// Returns the host's taps, and one behind them for each of EngineOptions::feature_layers.
std::vector<Tap> all_taps(const ops::Graph& graph, const EngineOptions& options);

/// Keeps passes that are no steps from taps while it lives.
class PausedTaps {
 public:
  explicit PausedTaps(std::optional<ops::TapBook>& taps)
      : taps_(taps), was_paused_(taps && std::exchange(taps->is_paused, true)) {}
  PausedTaps(const PausedTaps&) = delete;
  PausedTaps& operator=(const PausedTaps&) = delete;
  ~PausedTaps() {
    if (taps_) taps_->is_paused = was_paused_;
  }

 private:
  std::optional<ops::TapBook>& taps_;
  const bool was_paused_;
};

/// Keeps what the layers' taps show of a step, and shows the host's taps to the host.
class FeatureRows final : public TapReader {
 public:
  void reserve(const EngineOptions& options, int64_t hidden_size);
  void read(const TapRows& rows) override;
  /// Returns [count, layers * hidden], those of the step's tokens from `first` on.
  std::span<const float> rows(int64_t first, int64_t count) const;

  TapReader* host = nullptr;

 private:
  size_t host_taps_ = 0, layers_ = 0, hidden_ = 0;
  std::vector<float> rows_;  // [tokens, layers, hidden]
};

}  // namespace vitrine::engine
