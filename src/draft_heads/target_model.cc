// SPDX-License-Identifier: Apache-2.0
#include "draft_heads/target_model.h"

#include "model/architecture.h"

namespace vitrine::draft_heads {

TargetModel open_target(const std::string& path) {
  Checkpoint checkpoint = Checkpoint::open(path);
  const ModelConfig config = parse_model_config(checkpoint);
  const ops::Graph graph = model::build_graph(checkpoint, config);
  TargetModel target{std::move(checkpoint), config, {}, {}, {}, 0};
  ops::WeightNames first;  // of the embedding
  graph.nodes.front().parameters->append_weights(first);
  target.embedding = first.tables.at(0).name;
  const ops::GraphHead& head = graph.heads.front();
  target.head = graph.nodes[head.node].parameters->logits().value().module;
  const ops::NormWeight norm = graph.nodes[head.final_norm].parameters->norm_weight().value();
  target.final_norm = norm.weight;
  target.norm_epsilon = static_cast<float>(norm.eps);
  return target;
}

}  // namespace vitrine::draft_heads
