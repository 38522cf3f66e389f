// SPDX-License-Identifier: Apache-2.0
// A llama with one op more at its start, so that the rules meet a violation inside a real pass.
#pragma once

#include <string>

#include "backend_torch/torch_op.h"
#include "model/architecture.h"

namespace vitrine::testing_support {

using PlantedReference = void (*)(backend_torch::ReferenceStep& step, const ops::OpNode& node);

/// Registers op and architecture `name`; in each pass `reference` runs after the embedding.
template <const char* name>
void plant(PlantedReference reference) {
  backend_torch::register_torch_op({name, reference});
  model::register_architecture(
      {.family = {.model_types = {name}}, .build = [](const ModelConfig& config) {
         ops::Graph graph = model::find_architecture("llama", "planted").build(config);
         graph.nodes.insert(graph.nodes.begin() + 1, ops::OpNode{.type = name, .layer = 0});
         for (ops::GraphHead& head : graph.heads) ++head.node, ++head.final_norm;
         return graph;
       }});
}

}  // namespace vitrine::testing_support
