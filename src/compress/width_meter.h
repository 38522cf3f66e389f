// SPDX-License-Identifier: Apache-2.0
// Private to the room: how far a model's predictions move when its matrices lose bits, and by which
// experts.
#pragma once

#include <memory>
#include <vector>

#include "layer_run.h"
#include "vitrine/compress.h"

namespace vitrine::compress {

/// Runs a model on texts of a calibration, whose matrices the caller replaces. Not thread-safe.
class WidthMeter final : public TapReader {
 public:
  /// Loads the model, whose graph it is. Throws what Engine::load and its steps throw.
  WidthMeter(const ops::Graph& graph, const std::string& model, const QuantizeOptions& options);
  ~WidthMeter() override;
  WidthMeter(const WidthMeter&) = delete;
  WidthMeter& operator=(const WidthMeter&) = delete;

  Engine& engine() { return *engine_; }

  /// Looks at the experts of a layer, whose matrices must be the source's: those that are measured
  /// next. Returns the share of tokens that reaches each; empty for a layer without experts.
  std::vector<double> look_at_experts(int layer);
  /// Returns the mean KL of what the model predicts now from what it did as it was loaded.
  double divergence();
  /// Divides the last divergence among the experts that were looked at: that of each token by what
  /// each of its experts adds to the layer's output otherwise than before (squares).
  std::vector<double> divergence_by_expert() const;
  /// Goes over to other texts of the calibration, where it has some. The matrices must be the
  /// source's.
  void take_other_texts();

  void read(const TapRows& rows) override;

 private:
  /// Has the engine show what the experts of each layer make.
  void add_taps(const ops::Graph& graph, EngineOptions& engine);
  std::vector<std::vector<float>> predict();

  static constexpr size_t kNoTap = static_cast<size_t>(-1);

  std::vector<std::vector<int32_t>> texts_, other_texts_;
  std::vector<size_t> tap_of_;       // by layer
  std::vector<int64_t> experts_of_;  // by layer
  std::unique_ptr<Engine> engine_;
  std::vector<std::vector<float>> plain_;  // log-probabilities
  // The layer that is looked at, by slot, [tokens * top_k]:
  size_t tap_ = kNoTap;
  int64_t num_experts_ = 0;
  bool is_looking_ = false;
  std::vector<float> outputs_, weights_;
  std::vector<int32_t> experts_;
  std::vector<double> errors_;  // of the last measurement
  std::vector<double> by_token_;
};

}  // namespace vitrine::compress
