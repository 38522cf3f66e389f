// SPDX-License-Identifier: Apache-2.0
// The residual stream of a step's tokens, for drafters that read it (Stepper::features).
#pragma once

#include <span>
#include <vector>

#include "ops/graph.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// The host's taps, and one behind them for each of EngineOptions::feature_layers.
std::vector<Tap> all_taps(const ops::Graph& graph, const EngineOptions& options);

/// Keeps what the layers' taps show of a step, and shows the host's taps to the host.
class FeatureRows final : public TapReader {
 public:
  void reserve(const EngineOptions& options, int64_t hidden_size);
  void read(const TapRows& rows) override;
  /// [count, layers * hidden] of the step's tokens from `first` on.
  std::span<const float> rows(int64_t first, int64_t count) const;

  TapReader* host = nullptr;

 private:
  size_t host_taps_ = 0, layers_ = 0, hidden_ = 0;
  std::vector<float> rows_;  // [tokens, layers, hidden]
};

}  // namespace vitrine::engine
