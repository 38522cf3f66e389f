// SPDX-License-Identifier: Apache-2.0
#include "routing_places.h"

#include <algorithm>

#include "model/architecture.h"
#include "ops/decoder_ops.h"

namespace vitrine::compress {

ops::Graph graph_of(const std::string& model) {
  const Checkpoint checkpoint = Checkpoint::open(model);
  const ModelConfig config = parse_model_config(checkpoint);
  return model::build_graph(checkpoint, config);
}

std::vector<ExpertLayer> add_expert_taps(const ops::Graph& graph, EngineOptions& options) {
  std::vector<ExpertLayer> layers;
  for (const ops::OpNode& node : graph.nodes) {
    const auto* experts = node.find<ops::ExpertsParameters>();
    if (experts == nullptr || node.layer < 0 || node.inputs.empty()) continue;
    if (!layers.empty() && layers.back().layer == node.layer) continue;
    const ops::Value& input = graph.values[static_cast<size_t>(node.inputs[0])];
    layers.push_back({node.layer, experts->experts, input.width, options.taps.size()});
    Tap tap;
    tap.layer = node.layer;
    tap.op = node.type;
    tap.value = input.name;
    options.taps.push_back(tap);
  }
  return layers;
}

int64_t columns_of_experts(std::span<const ExpertLayer> layers) {
  int64_t columns = 0;
  for (const ExpertLayer& layer : layers) columns = std::max(columns, layer.columns);
  return columns;
}

void require_texts(std::span<const std::vector<int32_t>> texts) {
  const bool has_empty =
      std::ranges::any_of(texts, [](const std::vector<int32_t>& text) { return text.empty(); });
  if (!texts.empty() && !has_empty) return;
  throw Error(ErrorKind::kInvalidArgument, texts.empty()
                                               ? "there are no texts; expected some"
                                               : "a text has no tokens; expected some in each");
}

}  // namespace vitrine::compress
