// SPDX-License-Identifier: Apache-2.0
#include "draft_heads/target_model.h"

#include <algorithm>

#include "model/architecture.h"
#include "ops/decoder_ops.h"

namespace vitrine::draft_heads {

TargetModel open_target(const std::string& path) {
  Checkpoint checkpoint = Checkpoint::open(path);
  const ModelConfig config = parse_model_config(checkpoint);
  const ops::Graph graph = model::build_graph(checkpoint, config);
  TargetModel target{std::move(checkpoint), config, {}, {}, {}, 0};
  const auto embed = std::ranges::find(graph.nodes, "embed", &ops::OpNode::type);
  target.embedding = embed->as<ops::EmbedParameters>().table;
  const ops::GraphHead& head = graph.heads.front();
  target.head = graph.nodes[head.node].as<ops::HeadParameters>().matrix;
  const auto& norm = graph.nodes[head.final_norm].as<ops::NormParameters>();
  target.final_norm = norm.weight;
  target.norm_epsilon = static_cast<float>(norm.eps);
  return target;
}

}  // namespace vitrine::draft_heads
