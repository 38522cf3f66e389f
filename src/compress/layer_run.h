// SPDX-License-Identifier: Apache-2.0
// Private to the room: a calibration text goes through a model, layer by layer.
#pragma once

#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "hessian.h"
#include "layer_sites.h"
#include "vitrine/engine.h"

namespace vitrine::compress {

/// What one place of a layer showed of all texts.
struct SiteRows {
  Rows rows;
  int32_t rows_per_token = 1;    ///< above 1: those of a token's experts, in slot order
  int32_t top_k = 0;             ///< 0: the op has no experts
  std::vector<int32_t> experts;  ///< [tokens * top_k]
};

/// Returns the options of an engine that takes each of these texts in one step, with keys and
/// values as they are computed; one sequence at a time.
EngineOptions text_options(std::span<const std::vector<int32_t>> texts, int threads,
                           bool is_lenient);
/// Takes a text through a whole model, for its taps.
void run_text(Engine& engine, std::span<const int32_t> ids);

/// Takes texts through a model's layers, each of which first is looked at and then passed, so that
/// its matrices may be replaced in between. Its weights stay in the mapped file, and what replaced
/// those of a layer goes when that is passed, as its keys and values do: memory holds one layer.
/// Layers that keep a state take no steps of their own: such a model stands in memory, and runs
/// whole for each layer that is looked at. Not thread-safe.
class LayerRun {
 public:
  /// The texts must stay. Throws what Engine::load throws, and kInvalidArgument for
  /// a text that is longer than the model's context or has ids beyond its vocabulary.
  LayerRun(const std::string& model, std::span<const std::vector<int32_t>> texts,
           std::span<const LayerSites> layers, bool keeps_state, int threads, bool is_lenient);

  /// Engine::replace_matrix(), of a matrix of the next layer.
  void replace_matrix(const std::string& module, std::span<const float> values);
  /// Engine::restore_matrix(), of such a matrix.
  void restore_matrix(const std::string& module);
  /// Returns what the places of the next layer show, in their order, and behind them what leaves
  /// the layer.
  std::vector<SiteRows> look();
  /// Returns what leaves the next layer as it is now, of the first texts that have `tokens` tokens
  /// together (all where they have fewer): the first of the rows that look() has last.
  std::vector<float> probe(int64_t tokens);
  /// Takes the texts through that layer, as it is now. Its matrices are the source's then, but in a
  /// model whose layers keep a state.
  void pass();

 private:
  /// Where a text stands. What looks at a layer is a fork of it: its keys and values are written
  /// again when the layer is passed.
  struct Text {
    std::span<const int32_t> ids;
    SequenceId passing = 0;
    std::vector<float> residual;  // [ids, hidden] what left the layers that were passed
  };
  std::vector<float> step(const Text& text, SequenceId sequence);

  /// Gives back what memory holds for the layer that was passed, and for the one below.
  void leave_layer();

  class Reader;
  std::vector<SiteRows> read_texts(size_t first_tap, size_t count, std::span<const Text> texts);

  std::unique_ptr<Engine> engine_;
  std::vector<size_t> first_tap_;   // by layer
  std::set<std::string> replaced_;  // modules of the next layer
  std::vector<Text> texts_;
  bool runs_whole_;
  int layer_ = 0;  // the next one
};

}  // namespace vitrine::compress
