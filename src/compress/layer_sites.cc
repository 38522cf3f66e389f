// SPDX-License-Identifier: Apache-2.0
#include "layer_sites.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "ops/decoder_ops.h"

namespace vitrine::compress {
namespace {

constexpr std::string_view kStream = "residual";

/// Returns the number of a place, which is added where it is new.
size_t site_of(LayerSites& layer, const ops::OpNode& node, const std::string& value,
               Tap::Side side) {
  const auto is_same = [&](const Tap& tap) {
    return tap.op == node.type && tap.value == value && tap.side == side;
  };
  const auto found = std::ranges::find_if(layer.sites, is_same);
  if (found != layer.sites.end()) return static_cast<size_t>(found - layer.sites.begin());
  Tap tap;
  tap.layer = node.layer;
  tap.op = node.type;
  tap.value = value;
  tap.side = side;
  layer.sites.push_back(tap);
  return layer.sites.size() - 1;
}

void add_node(LayerSites& layer, const ops::Graph& graph, const ops::OpNode& node) {
  ops::WeightNames names;
  node.parameters->append_weights(names);
  if (names.products.empty() || node.inputs.empty()) return;
  const std::string& input = graph.values[static_cast<size_t>(node.inputs[0])].name;
  const auto outer = [&] { return site_of(layer, node, input, Tap::Side::kInput); };
  const auto inner = [&](const char* rows) {
    return site_of(layer, node, rows, Tap::Side::kOutput);
  };
  if (const auto* experts = node.find<ops::ExpertsParameters>()) {
    const bool is_plain =
        experts->gating.kind == kernels::Gating::Kind::kSilu && !experts->has_biases;
    for (int64_t e = 0; e < experts->experts; ++e) {
      const std::string gate = experts->module(e, experts->gate);
      const std::string up = experts->module(e, experts->up);
      layer.matrices.push_back({gate, outer(), e});
      layer.matrices.push_back({up, outer(), e});
      SiteMatrix down{experts->module(e, experts->down), inner("expert_hidden"), e};
      if (is_plain) {
        down.gate = gate;
        down.up = up;
        down.outer = outer();
      }
      layer.matrices.push_back(std::move(down));
    }
  } else if (const auto* dense = node.find<ops::DenseParameters>()) {
    layer.matrices.push_back({dense->gate, outer()});
    layer.matrices.push_back({dense->up, outer()});
    SiteMatrix down{dense->down, inner("dense_hidden")};
    if (dense->gating.kind == kernels::Gating::Kind::kSilu) {
      down.gate = dense->gate;
      down.up = dense->up;
      down.outer = outer();
    }
    layer.matrices.push_back(std::move(down));
  } else if (const auto* qkv = node.find<ops::QkvParameters>()) {
    for (const std::string& module : qkv->matrices) {
      if (module.empty()) continue;
      SiteMatrix matrix{module, outer()};
      matrix.makes_scores = module != qkv->matrices.back();
      layer.matrices.push_back(std::move(matrix));
    }
  } else {
    for (const std::string& module : names.products) layer.matrices.push_back({module, outer()});
  }
}

/// Adds the matrices with which a node multiplies a value; returns false for a node of which that
/// is not known.
bool add_readers(const ops::OpNode& node, ops::ValueId value, NormPlace& place) {
  const auto add = [&](const std::string& module, std::vector<std::string>& to) {
    if (!module.empty() && std::ranges::find(to, module) == to.end()) to.push_back(module);
  };
  const bool is_first = node.inputs[0] == value;
  if (const auto* qkv = node.find<ops::QkvParameters>(); qkv != nullptr && is_first) {
    for (const std::string& module : qkv->matrices) add(module, place.readers);
    return true;
  }
  if (const auto* project = node.find<ops::ProjectParameters>(); project != nullptr && is_first) {
    add(project->matrix, project->steers_state ? place.float_readers : place.readers);
    return true;
  }
  if (const auto* router = node.find<ops::RouterParameters>(); router != nullptr && is_first) {
    add(router->matrix, place.float_readers);
    return true;
  }
  if (const auto* dense = node.find<ops::DenseParameters>(); dense != nullptr && is_first) {
    add(dense->gate, place.readers);
    add(dense->up, place.readers);
    return true;
  }
  if (const auto* experts = node.find<ops::ExpertsParameters>(); experts != nullptr && is_first) {
    for (int64_t e = 0; e < experts->experts; ++e) {
      add(experts->module(e, experts->gate), place.readers);
      add(experts->module(e, experts->up), place.readers);
    }
    return true;
  }
  if (const auto* combine = node.find<ops::CombineParameters>(); combine != nullptr && !is_first) {
    add(combine->shared_gate, place.float_readers);
    return true;
  }
  return false;
}

/// Adds the norm of a node, where all that reads it is known.
void add_norm(LayerSites& layer, const ops::Graph& graph, const ops::OpNode& node) {
  const std::optional<ops::NormWeight> norm = node.parameters->norm_weight();
  if (!norm || norm->weight.empty() || node.outputs.empty()) return;
  NormPlace place;
  place.norm = norm->weight;
  const ops::ValueId value = node.outputs[0];
  for (const ops::OpNode& other : graph.nodes) {
    if (other.layer != node.layer || &other <= &node) continue;
    if (std::ranges::find(other.inputs, value) != other.inputs.end() &&
        !add_readers(other, value, place)) {
      return;
    }
    if (std::ranges::find(other.outputs, value) != other.outputs.end()) break;
  }
  for (const SiteMatrix& matrix : layer.matrices) {
    if (std::ranges::find(place.readers, matrix.module) == place.readers.end()) continue;
    place.site = matrix.site;
    layer.norms.push_back(std::move(place));
    return;
  }
}

/// Whether an attention's output is its values times numbers that do not hang on them, channel by
/// channel, and nothing else reads the values.
bool scales_by_channel(const ops::Graph& graph, const ops::OpNode& node) {
  const auto* attention = node.find<ops::AttentionParameters>();
  if (attention == nullptr || node.inputs.size() < 3) return false;
  if (attention->norms_values || attention->clip != 0) return false;
  for (int layer = 0; layer < graph.num_layers; ++layer) {
    if (layer != node.layer && graph.kv_shape(layer).source == node.layer) return false;
  }
  return true;
}

/// Finds what makes an attention's values and what reads its output.
std::optional<ValuePlace> find_values(const LayerSites& layer, const ops::Graph& graph,
                                      const ops::OpNode& attention) {
  ValuePlace place;
  size_t readers = 0;
  for (const ops::OpNode& node : graph.nodes) {
    if (node.layer != attention.layer) continue;
    const auto* qkv = node.find<ops::QkvParameters>();
    if (qkv != nullptr && node.outputs.size() > 2 && node.outputs[2] == attention.inputs[2]) {
      const auto& [query, key, value] = qkv->matrices;
      if (value != query && value != key) place.values = value;
      place.bias = qkv->biases[2];
    }
    if (std::ranges::find(node.inputs, attention.outputs[0]) == node.inputs.end()) continue;
    ++readers;
    const auto* project = node.find<ops::ProjectParameters>();
    if (project != nullptr) place.output = project->matrix;
  }
  const auto output = std::ranges::find(layer.matrices, place.output, &SiteMatrix::module);
  if (place.values.empty() || readers != 1 || output == layer.matrices.end()) return std::nullopt;
  place.site = output->site;
  place.head_size = graph.kv_shape(attention.layer).head_dim;
  place.sharing = graph.num_heads / graph.kv_shape(attention.layer).kv_heads;
  return place;
}

/// A matrix that an op names twice makes its keys and its values.
void remove_repeated(std::vector<SiteMatrix>& matrices) {
  std::set<std::string> names;
  std::erase_if(matrices,
                [&](const SiteMatrix& matrix) { return !names.insert(matrix.module).second; });
}

}  // namespace

std::vector<LayerSites> find_layer_sites(const ops::Graph& graph) {
  std::vector<LayerSites> layers(static_cast<size_t>(graph.num_layers));
  for (const ops::OpNode& node : graph.nodes) {
    if (node.layer < 0) continue;
    add_node(layers[static_cast<size_t>(node.layer)], graph, node);
  }
  for (LayerSites& layer : layers) remove_repeated(layer.matrices);
  for (const ops::OpNode& node : graph.nodes) {
    if (node.layer < 0) continue;
    LayerSites& layer = layers[static_cast<size_t>(node.layer)];
    add_norm(layer, graph, node);
    if (scales_by_channel(graph, node)) layer.values = find_values(layer, graph, node);
    if (node.outputs.empty()) continue;
    const std::string& made = graph.values[static_cast<size_t>(node.outputs[0])].name;
    if (made != kStream) continue;
    layer.result.layer = node.layer;
    layer.result.op = node.type;
    layer.result.value = made;
    layer.result.side = Tap::Side::kOutput;
  }
  return layers;
}

}  // namespace vitrine::compress
