// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "checkpoint/gguf_export.h"
#include "layer_run.h"
#include "model/architecture.h"
#include "vitrine/gguf_export.h"

namespace vitrine {
namespace {

using compress::LayerSites;
using compress::SiteMatrix;

/// Loads a model that adds up squares at every place of its layers.
std::unique_ptr<Engine> load_tapped(const std::string& model, std::span<const LayerSites> layers,
                                    EngineOptions options) {
  for (const LayerSites& layer : layers) {
    for (size_t site = 0; site < layer.sites.size(); ++site) {
      Tap tap = layer.sites[site];
      tap.squares = true;
      tap.by_expert = std::ranges::any_of(layer.matrices, [site](const SiteMatrix& matrix) {
        return matrix.site == site && matrix.expert >= 0;
      });
      options.taps.push_back(tap);
    }
  }
  return Engine::load(model, options);
}

void append(const TapSums& sums, ImportanceMatrix::Entry& entry) {
  entry.counts.push_back(sums.count);
  for (const double square : sums.squares) {
    const double rows = static_cast<double>(std::max<int64_t>(1, sums.count));
    entry.mean_squares.push_back(static_cast<float>(square / rows));
  }
}

}  // namespace

ImportanceMatrix measure_importance(const std::string& model,
                                    const std::vector<std::vector<int32_t>>& texts, int threads,
                                    bool lenient_weights) {
  const Checkpoint checkpoint = Checkpoint::open(model);
  const ModelConfig config = parse_model_config(checkpoint);
  const checkpoint::GgufArchitecture& form = checkpoint::gguf_form_of(checkpoint, config);
  const std::vector<LayerSites> layers =
      compress::find_layer_sites(model::build_graph(checkpoint, config));
  const auto engine =
      load_tapped(model, layers, compress::text_options(texts, threads, lenient_weights));
  for (const std::vector<int32_t>& text : texts) compress::run_text(*engine, text);
  ImportanceMatrix matrix;
  size_t first_tap = 0;
  for (const LayerSites& layer : layers) {
    for (const SiteMatrix& one : layer.matrices) {
      const std::string name = checkpoint::gguf_tensor_name(form, one.module + ".weight");
      const size_t tap = first_tap + one.site;
      append(engine->tap_sums(tap, one.expert < 0 ? 0 : static_cast<int>(one.expert)),
             matrix.entries[name]);
    }
    first_tap += layer.sites.size();
  }
  return matrix;
}

}  // namespace vitrine
