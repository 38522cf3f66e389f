// SPDX-License-Identifier: Apache-2.0
#include "model/draft_layer.h"

#include <algorithm>
#include <utility>

#include "model/architecture.h"
#include "model/named_vector.h"
#include "ops/decoder_ops.h"
#include "ops/draft_input.h"

namespace vitrine::model {

namespace {

using ops::OpNode;
using ops::ValueId;

DraftLayers draft_layers_of(const ModelConfig& config) {
  const Architecture* architecture = lookup_architecture(config.model_type);
  return architecture == nullptr ? DraftLayers::kNone : architecture->drafts;
}

bool adds_one_to_norms(const ModelConfig& config) {
  return !config.linear_layers.empty() && config.linear_layout == LinearLayout::kPublished;
}

/// A checkpoint's names of the parts.
struct DraftNames {
  std::string layer;   // before the names of the decoder layer's tensors
  std::string joined;  // the matrix [hidden, 2 * hidden]
  std::string token_norm, stream_norm, final_norm;
  std::string table, head;  // empty: they have none of their own
};

/// Returns the names of a layer that drafts, counted from 0.
DraftNames names_of(const ModelConfig& config, int index) {
  if (adds_one_to_norms(config)) {  // folders of Qwen3-Next and Qwen3.5
    return {"mtp.layers.0.",
            "mtp.fc",
            one_plus("mtp.pre_fc_norm_embedding.weight"),
            one_plus("mtp.pre_fc_norm_hidden.weight"),
            one_plus("mtp.norm.weight"),
            "",
            ""};
  }
  const std::string layer = "model.layers." + std::to_string(config.num_layers + index) + ".";
  return {layer,
          layer + "eh_proj",
          layer + "enorm.weight",
          layer + "hnorm.weight",
          layer + "shared_head.norm.weight",
          layer + "embed_tokens",
          layer + "shared_head.head"};
}

bool has_matrix(const Checkpoint& checkpoint, const std::string& module) {
  return !module.empty() && (checkpoint.find(module + ".weight") != nullptr ||
                             checkpoint.find_quantized(module) != nullptr);
}

bool has_tensors(const Checkpoint& checkpoint, const ModelConfig& config, const DraftNames& names) {
  if (has_matrix(checkpoint, names.joined)) return true;
  return config.num_draft_layers > 0 && checkpoint.find(names.token_norm) != nullptr;
}

void require_draft_layer(const Checkpoint& checkpoint, const ModelConfig& config,
                         const DraftNames& names) {
  if (draft_layers_of(config) == DraftLayers::kNone) {
    std::string known;
    for (const std::string& name : architecture_names()) {
      if (lookup_architecture(name)->drafts == DraftLayers::kNone) continue;
      known += (known.empty() ? "" : ", ") + name;
    }
    throw Error(ErrorKind::kUnsupported,
                checkpoint.config_name() + ": field 'model_type' is '" + config.model_type +
                    "', of which no layer that drafts (MTP) is known; expected one of " + known);
  }
  if (has_tensors(checkpoint, config, names)) return;
  // Publishers of smaller files leave the layer out, and the config as it was.
  const std::string told = config.num_draft_layers > 0 ? ", though its config counts one" : "";
  throw Error(ErrorKind::kInvalidArgument,
              checkpoint.path() + ": the checkpoint has no layer that drafts (MTP)" + told +
                  "; expected '" + checkpoint.name_in_file(names.joined + ".weight") +
                  "', or another drafter");
}

}  // namespace

bool feeds_normed_rows(const ModelConfig& config) {
  return draft_layers_of(config) == DraftLayers::kQwen;
}

std::string final_norm_of(const ModelConfig& config) {
  const std::string name = "model.norm.weight";
  return adds_one_to_norms(config) ? one_plus(name) : name;
}

int num_draft_layers(const ModelConfig& config) {
  if (draft_layers_of(config) == DraftLayers::kQwen) return 1;
  return std::max(1, static_cast<int>(config.num_draft_layers));
}

bool has_draft_layer(const Checkpoint& checkpoint, const ModelConfig& config, int index) {
  return draft_layers_of(config) != DraftLayers::kNone &&
         has_tensors(checkpoint, config, names_of(config, index));
}

DraftLayer build_draft_layer(const Checkpoint& checkpoint, const ModelConfig& config, int index) {
  const DraftNames names = names_of(config, index);
  require_draft_layer(checkpoint, config, names);
  const auto layer = static_cast<int>(config.num_layers) + index;
  ModelConfig whole = config;  // the layer as one more of the model's, with keys and values
  whole.num_layers = layer + 1;
  const auto layers = static_cast<size_t>(whole.num_layers);
  if (!whole.linear_layers.empty()) whole.linear_layers.resize(layers, false);
  if (!whole.windows.empty()) whole.windows.resize(layers, 0);
  ops::Graph all = build_graph(checkpoint, whole);

  DraftLayer result{config, {}};
  ModelConfig& own = result.config;
  own.num_layers = 1;
  own.num_draft_layers = 0;
  own.linear_layers.clear();
  own.windows.clear();
  own.mlp_only_layers.clear();

  const ops::GraphHead last = all.heads.at(0);
  const ValueId stream = all.stream();
  const std::vector<OpNode> nodes = std::exchange(all.nodes, {});
  ops::Graph& graph = result.graph = std::move(all);
  graph.num_layers = 1;
  graph.state_floats.clear();
  const ValueId given = graph.add_value("given", config.hidden_size);
  const ValueId joined = graph.add_value("joined", 2 * config.hidden_size);
  ops::DraftInputParameters input;
  input.table = has_matrix(checkpoint, names.table) ? names.table : "model.embed_tokens";
  input.token_norm = names.token_norm;
  input.stream_norm = names.stream_norm;
  input.eps = config.rms_norm_eps;
  graph.add(ops::kDraftInput, -1, {given}, {joined}, std::move(input));
  ops::ProjectParameters project;
  project.matrix = names.joined;
  project.adds_to_residual = false;
  project.takes_adapters = false;
  graph.add("project", -1, {joined}, {stream}, std::move(project));

  const std::string own_prefix = "model.layers." + std::to_string(layer) + ".";
  const auto rename = [&](std::string& name) {
    const size_t at = name.find(own_prefix);
    if (at != std::string::npos) name.replace(at, own_prefix.size(), names.layer);
  };
  for (OpNode node : nodes) {
    if (node.layer != layer) continue;
    node.layer = 0;
    node.parameters = node.parameters->renamed(rename);
    graph.nodes.push_back(std::move(node));
  }
  OpNode norm = nodes[last.final_norm], head = nodes[last.node];
  norm.parameters = norm.parameters->renamed([&](std::string& name) { name = names.final_norm; });
  if (has_matrix(checkpoint, names.head)) {
    head.parameters = head.parameters->renamed([&](std::string& name) { name = names.head; });
  }
  graph.nodes.push_back(std::move(norm));
  graph.nodes.push_back(std::move(head));
  graph.heads = {{graph.nodes.size() - 1, last.input, graph.nodes.size() - 2}};
  return result;
}

}  // namespace vitrine::model
