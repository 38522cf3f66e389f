// SPDX-License-Identifier: Apache-2.0
// What the ops of decoders say of themselves. A backend that is a library of its own has a copy.
#include "ops/decoder_ops.h"

#include <algorithm>
#include <utility>

namespace vitrine::ops {

namespace {

using Kind = AuditLayout::Term::Kind;

const AuditLayout::Layer& layer_of(const AuditLayout& layout, const OpNode& node) {
  return layout.layers[static_cast<size_t>(node.layer)];
}

AddedPart added(const OpNode& source, ResidualPart part) { return {part, &source, {}, 0, {}}; }

/// Returns the last op before `node` that makes a value; null where none does.
const OpNode* maker_of(const Graph& graph, const OpNode& node, ValueId value) {
  for (const OpNode* before = &node; before-- != graph.nodes.data();) {
    if (std::ranges::find(before->outputs, value) != before->outputs.end()) return before;
  }
  return nullptr;
}

}  // namespace

void EmbedParameters::append_weights(WeightNames& names) const {
  names.add_tables("embedding", {table});
}

void NormParameters::append_weights(WeightNames& names) const {
  names.add_vectors("norm", {weight});
}

void QkvParameters::append_weights(WeightNames& names) const {
  names.add_products({matrices[0], matrices[1], matrices[2]});
  names.add_vectors("bias", {biases[0], biases[1], biases[2]});
}

void AttentionParameters::append_weights(WeightNames& names) const {
  names.add_vectors("norm", {query_norm, key_norm});
  names.add_vectors("attention sinks", {sinks});
}

void GatedDeltaParameters::append_weights(WeightNames& names) const {
  names.add_vectors("convolution", {convolution});
  names.add_vectors("decay of a state", {rate, bias});
  names.add_vectors("norm", {norm});
}

void ShortConvolutionParameters::append_weights(WeightNames& names) const {
  names.add_vectors("convolution", {weight});
  names.add_vectors("bias", {bias});
}

void LatentAttentionParameters::append_weights(WeightNames& names) const {
  // The half that makes keys is needed transposed, across the groups of a quantized matrix.
  names.add_float_products("latent attention multiplies with its halves as floats",
                           {keys_and_values.module});
  names.add_vectors("norm", {norm});
}

void ProjectParameters::append_weights(WeightNames& names) const {
  if (steers_state) {
    names.add_float_products("it steers a state, in which errors would add up", {matrix});
  } else {
    names.add_products({matrix});
  }
  names.add_vectors("bias", {bias});
}

void DenseParameters::append_weights(WeightNames& names) const {
  names.add_products({gate, up, down});
}

void RouterParameters::append_weights(WeightNames& names) const {
  names.add_float_products("router", {matrix});
  names.add_vectors("bias", {bias});
  names.add_vectors("router correction", {correction});
  names.add_vectors("router scale", {expert_scale});
}

void ExpertsParameters::append_weights(WeightNames& names) const {
  for (int64_t expert = 0; expert < experts; ++expert) {
    for (const std::string* role : {&gate, &up, &down}) {
      names.add_products({module(expert, *role)});
      if (has_biases) names.add_vectors("bias", {module(expert, *role) + ".bias"});
    }
  }
}

void CombineParameters::append_weights(WeightNames& names) const {
  names.add_float_products("shared expert gate", {shared_gate});
}

void HeadParameters::append_weights(WeightNames& names) const {
  names.add_float_products("output head", {matrix});
}

void PostNormParameters::append_weights(WeightNames& names) const {
  names.add_vectors("norm", {weight, inner[0], inner[1]});
  names.add_vectors("layer scale", {scalar});
}

void LayerInputsParameters::append_weights(WeightNames& names) const {
  names.add_tables("embedding", {table});
  names.add_vectors("norm", {norm});
}

std::vector<AddedPart> EmbedParameters::added_parts(const Graph&, const OpNode& node) const {
  return {added(node, ResidualPart{Kind::kEmbedding})};
}

std::vector<RecordedWords> NormParameters::recorded(const AuditLayout& layout,
                                                    const OpNode& node) const {
  if (!is_recorded(node)) return {};
  return {{layer_of(layout, node).residual_norm, 1}};
}

void QkvParameters::append_matrices(const Graph& graph, const OpNode& node,
                                    std::vector<OpMatrix>& all) const {
  for (size_t i = 0; i < matrices.size(); ++i) {
    if (i > 0 && matrices[i] == matrices[i - 1]) continue;  // keys that are values
    all.push_back({matrices[i], graph.width(node.outputs[i]), graph.width(node.inputs[0])});
  }
}

void ProjectParameters::append_matrices(const Graph& graph, const OpNode& node,
                                        std::vector<OpMatrix>& all) const {
  if (!takes_adapters) return;
  all.push_back({matrix, graph.width(node.outputs[0]), graph.width(node.inputs[0])});
}

std::vector<AddedPart> ProjectParameters::added_parts(const Graph&, const OpNode& node) const {
  if (!adds_to_residual) return {};
  return {added(node, ResidualPart{Kind::kAttention})};
}

void DenseParameters::append_matrices(const Graph& graph, const OpNode& node,
                                      std::vector<OpMatrix>& all) const {
  const int64_t in = graph.width(node.inputs[0]);
  all.push_back({gate, intermediate, in});
  all.push_back({up, intermediate, in});
  all.push_back({down, graph.width(node.outputs[0]), intermediate});
}

std::vector<AddedPart> DenseParameters::added_parts(const Graph&, const OpNode& node) const {
  if (!adds_to_residual) return {};
  return {added(node, ResidualPart{Kind::kDense})};
}

void RouterParameters::append_matrices(const Graph& graph, const OpNode& node,
                                       std::vector<OpMatrix>& all) const {
  all.push_back({matrix, shape.experts, graph.width(node.inputs[0])});
}

std::vector<RecordedWords> RouterParameters::recorded(const AuditLayout& layout,
                                                      const OpNode& node) const {
  const AuditLayout::Layer& layer = layer_of(layout, node);
  if (layer.expert_ids < 0) return {};
  std::vector<RecordedWords> words = {{layer.expert_ids, layer.top_k},
                                      {layer.expert_weights, layer.top_k}};
  if (layer.router_probs >= 0) words.push_back({layer.router_probs, layer.num_experts});
  if (layer.router_scores >= 0) words.push_back({layer.router_scores, 2 * layer.top_k});
  return words;
}

void ExpertsParameters::append_matrices(const Graph& graph, const OpNode& node,
                                        std::vector<OpMatrix>& all) const {
  const int64_t outer = graph.width(node.inputs[0]);
  for (int64_t expert = 0; expert < experts; ++expert) {
    all.push_back({module(expert, gate), intermediate, outer});
    all.push_back({module(expert, up), intermediate, outer});
    all.push_back({module(expert, down), outer, intermediate});
  }
}

std::vector<AddedPart> CombineParameters::added_parts(const Graph& graph,
                                                      const OpNode& node) const {
  if (!adds_to_residual) return {};
  return {added(node, *made_part(graph, node))};
}

std::vector<RecordedWords> CombineParameters::recorded(const AuditLayout& layout,
                                                       const OpNode& node) const {
  const AuditLayout::Layer& layer = layer_of(layout, node);
  if (layer.expert_norms < 0) return {};
  return {{layer.expert_norms, layer.top_k}};
}

std::optional<ResidualPart> CombineParameters::made_part(const Graph& graph,
                                                         const OpNode& node) const {
  ResidualPart part{Kind::kExpert};
  part.top_k = graph.width(node.inputs.at(0)) / graph.width(node.outputs.at(0));
  part.has_shared = node.inputs.size() > 2;
  part.multiplier = multiplier;
  return part;
}

std::vector<AddedPart> PostNormParameters::added_parts(const Graph& graph,
                                                       const OpNode& node) const {
  std::vector<AddedPart> parts;
  const size_t branches = node.inputs.size() - 1;
  for (size_t i = 0; i < branches; ++i) {
    const OpNode* const maker = maker_of(graph, node, node.inputs[i]);
    const auto made = maker == nullptr ? std::nullopt : maker->parameters->made_part(graph, *maker);
    if (!made) continue;
    AddedPart part = added(*maker, *made);
    if (has_two()) part.norms.push_back({inner.at(i), static_cast<int32_t>(1 + i)});
    part.norms.push_back({weight, 0});
    part.eps = eps;
    parts.push_back(std::move(part));
  }
  if (parts.size() < branches) parts.push_back(added(node, ResidualPart{term}));
  parts.back().scalar = scalar;
  return parts;
}

}  // namespace vitrine::ops
