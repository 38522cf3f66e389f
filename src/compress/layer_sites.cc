// SPDX-License-Identifier: Apache-2.0
#include "layer_sites.h"

#include <algorithm>
#include <set>

#include "ops/decoder_ops.h"

namespace vitrine::compress {
namespace {

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
    layer.matrices.push_back({dense->down, inner("dense_hidden")});
  } else {
    for (const std::string& module : names.products) layer.matrices.push_back({module, outer()});
  }
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
  return layers;
}

}  // namespace vitrine::compress
