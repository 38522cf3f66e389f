// SPDX-License-Identifier: Apache-2.0
// Where a graph is probed for attribution, and the terms that come of it.
#include "ops/attribution.h"

namespace vitrine::ops {

using Term = AuditLayout::Term;

void add_attribution(Graph& graph) {
  Graph probed = graph;
  probed.nodes.clear();
  const ValueId stream = graph.nodes.at(0).outputs.at(0);
  const int64_t hidden = graph.values[static_cast<size_t>(stream)].width;
  OpNode norm;
  int64_t next = 0;
  auto probe = [&](Term::Kind kind, const OpNode& of, std::vector<ValueId> inputs, int64_t count) {
    OpNode node{.type = kAttributionProbe, .layer = of.layer, .inputs = std::move(inputs)};
    node.attributes = {{"kind", static_cast<double>(kind)}, {"first", static_cast<double>(next)}};
    next += count;
    return node;
  };
  for (const OpNode& node : graph.nodes) {
    probed.nodes.push_back(node);
    if (node.type == "combine") {
      const ValueId slots = node.inputs.at(0);
      const int64_t top_k = graph.values[static_cast<size_t>(slots)].width / hidden;
      std::vector<ValueId> inputs = {slots};
      if (node.inputs.size() > 2) inputs.push_back(node.inputs[2]);
      const auto count = top_k + (inputs.size() > 1 ? 1 : 0);
      OpNode experts = probe(Term::Kind::kExpert, node, std::move(inputs), count);
      experts.attributes["experts"] = 1.0;
      experts.attributes["top_k"] = static_cast<double>(top_k);
      experts.attributes["multiplier"] = node.attribute("multiplier", 1.0);
      probed.nodes.push_back(std::move(experts));
    }
    const bool is_dense = node.type == "dense_ffn" && node.flag("residual");
    if (node.type == "embed") {
      probed.nodes.push_back(probe(Term::Kind::kEmbedding, node, {stream}, 1));
    } else if (node.type == "project") {
      probed.nodes.push_back(probe(Term::Kind::kAttention, node, {stream}, 1));
    } else if (is_dense) {
      probed.nodes.push_back(probe(Term::Kind::kDense, node, {stream}, 1));
    } else if (node.type == "rms_norm" && node.layer < 0) {
      norm = node;
    } else if (node.type == "head") {
      OpNode last{.type = "attribution", .inputs = {stream}, .weights = node.weights};
      last.weights["norm"] = norm.weight("weight");
      last.attributes = {{"eps", norm.attribute("eps")},
                         {"multiplier", node.attribute("multiplier", 1.0)}};
      probed.nodes.push_back(std::move(last));
    }
  }
  graph = std::move(probed);
}

std::vector<AttributionPart> attribution_parts(const Graph& graph) {
  std::vector<AttributionPart> parts;
  for (const OpNode& node : graph.nodes) {
    if (node.type != kAttributionProbe) continue;
    AttributionPart part;
    part.kind = static_cast<Term::Kind>(node.integer("kind"));
    part.layer = node.layer;
    part.first = static_cast<int32_t>(node.integer("first"));
    if (node.flag("experts")) {
      part.top_k = static_cast<int32_t>(node.integer("top_k"));
      part.has_shared = node.inputs.size() > 1;
      part.multiplier = node.attribute("multiplier");
    }
    parts.push_back(part);
  }
  return parts;
}

int32_t attribution_vectors(const Graph& graph) {
  const std::vector<AttributionPart> parts = attribution_parts(graph);
  if (parts.empty()) return 0;
  const AttributionPart& last = parts.back();
  const bool is_experts = last.kind == Term::Kind::kExpert;
  return last.first + (is_experts ? last.top_k + (last.has_shared ? 1 : 0) : 1);
}

std::vector<Term> attribution_terms(const Graph& graph) {
  std::vector<Term> terms;
  for (const AttributionPart& part : attribution_parts(graph)) {
    if (part.kind == Term::Kind::kExpert) {
      for (int32_t slot = 0; slot < part.top_k; ++slot) {
        terms.push_back({Term::Kind::kExpert, part.layer, slot});
      }
      if (part.has_shared) terms.push_back({Term::Kind::kShared, part.layer, -1});
    } else {
      terms.push_back({part.kind, part.layer, -1});
    }
  }
  return terms;
}

}  // namespace vitrine::ops
