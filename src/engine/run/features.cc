// SPDX-License-Identifier: Apache-2.0
#include "engine/run/features.h"

#include <algorithm>
#include <string>

namespace vitrine::engine {

namespace {

// The first op that reads what enters the layer; of the number of layers, what leaves the last one.
Tap entry_of(const ops::Graph& graph, int layer) {
  for (const ops::OpNode& node : graph.nodes) {
    const int entered = node.layer < 0 ? graph.num_layers : node.layer;
    if (entered != layer || !node.parameters->reads_stream_between_layers()) continue;
    Tap tap;
    tap.layer = node.layer;
    tap.op = node.type;
    tap.value = graph.values[static_cast<size_t>(node.inputs.at(0))].name;
    return tap;
  }
  throw Error(
      ErrorKind::kUnsupported,
      "engine option 'feature_layers': nothing reads the residual stream as it enters layer " +
          std::to_string(layer) + "; expected other layers");
}

}  // namespace

std::vector<Tap> all_taps(const ops::Graph& graph, const EngineOptions& options) {
  std::vector<Tap> taps = options.taps;
  for (const int layer : options.feature_layers) taps.push_back(entry_of(graph, layer));
  return taps;
}

void FeatureRows::reserve(const EngineOptions& options, int64_t hidden_size) {
  host_taps_ = options.taps.size();
  layers_ = options.feature_layers.size();
  hidden_ = static_cast<size_t>(hidden_size);
  rows_.resize(static_cast<size_t>(options.max_step_tokens) * layers_ * hidden_);
}

void FeatureRows::read(const TapRows& rows) {
  if (rows.tap < host_taps_) {
    if (host != nullptr) host->read(rows);
    return;
  }
  const size_t slot = rows.tap - host_taps_;
  for (size_t token = 0; token < rows.token_ids.size(); ++token) {
    std::copy_n(rows.rows.data() + token * hidden_, hidden_,
                rows_.data() + (token * layers_ + slot) * hidden_);
  }
}

std::span<const float> FeatureRows::rows(int64_t first, int64_t count) const {
  const size_t width = layers_ * hidden_;
  return std::span(rows_).subspan(static_cast<size_t>(first) * width,
                                  static_cast<size_t>(count) * width);
}

}  // namespace vitrine::engine
