// SPDX-License-Identifier: Apache-2.0
#include "model/weight_use.h"

#include "model/architecture.h"
#include "model/draft_layer.h"
#include "model/latent_halves.h"
#include "model/named_vector.h"

namespace vitrine::model {

WeightUses::WeightUses(const Checkpoint& checkpoint, const ModelConfig& config) {
  add_graph(checkpoint, build_graph(checkpoint, config));
  for (int layer = 0; layer < num_draft_layers(config); ++layer) {
    if (!has_draft_layer(checkpoint, config, layer)) break;
    add_graph(checkpoint, build_draft_layer(checkpoint, config, layer).graph);
  }
}

const WeightUse* WeightUses::find(const std::string& tensor) const {
  const auto found = uses_.find(tensor);
  return found == uses_.end() ? nullptr : &found->second;
}

void WeightUses::add_graph(const Checkpoint& checkpoint, const ops::Graph& graph) {
  using Kind = WeightUse::Kind;
  for (const ops::OpNode& node : graph.nodes) {
    ops::WeightNames names;
    node.parameters->append_weights(names);
    for (const std::string& module : names.products) {
      add_matrix(checkpoint, module, Kind::kProduct, "");
    }
    for (const ops::NamedWeight& matrix : names.float_products) {
      add_matrix(checkpoint, matrix.name, Kind::kFloatProduct, matrix.purpose);
    }
    for (const ops::NamedWeight& table : names.tables) {
      add_matrix(checkpoint, table.name, Kind::kTable, table.purpose);
    }
    for (const ops::NamedWeight& vector : names.vectors) {
      uses_.try_emplace(stored_name(vector.name), WeightUse{Kind::kVector, vector.purpose, ""});
    }
  }
}

void WeightUses::add_matrix(const Checkpoint& checkpoint, const std::string& module,
                            WeightUse::Kind kind, std::string_view purpose) {
  const WeightUse use{kind, purpose, module};
  const auto halves = find_latent_halves(checkpoint, module);
  if (!halves) {
    uses_.try_emplace(module + ".weight", use);
    return;
  }
  uses_.try_emplace(halves->keys->name, use);
  uses_.try_emplace(halves->values->name, use);
}

}  // namespace vitrine::model
