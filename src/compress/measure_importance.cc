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

void write_importance_matrix(const std::string& path, const ImportanceMatrix& matrix,
                             const std::string& source, int64_t texts, int64_t length) {
  checkpoint::GgufWriter writer(path);
  writer.set_string("general.type", "imatrix");
  writer.set_strings("imatrix.datasets", {source});
  writer.set_u32("imatrix.chunk_count", static_cast<uint64_t>(texts));
  writer.set_u32("imatrix.chunk_size", static_cast<uint64_t>(length));
  const auto declare = [&](const std::string& name, int64_t rows, int64_t cols) {
    writer.declare(name, 0, {rows, cols}, static_cast<uint64_t>(rows * cols) * sizeof(float));
  };
  for (const auto& [name, entry] : matrix.entries) {
    const int64_t experts = std::ssize(entry.counts);
    declare(name + ".in_sum2", experts, std::ssize(entry.mean_squares) / experts);
    declare(name + ".counts", experts, 1);
  }
  writer.begin();
  for (const auto& [name, entry] : matrix.entries) {
    std::vector<float> sums = entry.mean_squares;
    std::vector<float> counts;
    const size_t width = sums.size() / entry.counts.size();
    for (size_t i = 0; i < sums.size(); ++i) {
      sums[i] *= static_cast<float>(entry.counts[i / width]);
    }
    for (const int64_t count : entry.counts) counts.push_back(static_cast<float>(count));
    writer.write(name + ".in_sum2", std::as_bytes(std::span(sums)));
    writer.write(name + ".counts", std::as_bytes(std::span(counts)));
  }
  writer.finish();
}

}  // namespace vitrine
