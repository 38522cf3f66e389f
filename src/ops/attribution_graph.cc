// SPDX-License-Identifier: Apache-2.0
// Where a graph is probed for attribution, and the terms that come of it.
#include <utility>

#include "ops/attribution.h"

namespace vitrine::ops {

using Term = AuditLayout::Term;

namespace {

/// Makes the probes behind each node of a graph, in its order.
class ProbeMaker {
 public:
  explicit ProbeMaker(const Graph& graph) : graph_(graph) {}

  std::vector<OpNode> behind(const OpNode& node) {
    std::vector<OpNode> probes;
    for (AddedPart& part : node.parameters->added_parts(graph_, node)) {
      probes.push_back(probe_of(node, std::move(part)));
    }
    if (graph_.is_head(node)) probes.push_back(behind_head(node));
    return probes;
  }

 private:
  OpNode probe_of(const OpNode& node, AddedPart added) {
    AttributionProbeParameters probe;
    probe.part = added.part;
    probe.norms = std::move(added.norms);
    probe.eps = added.eps;
    probe.scalar = std::move(added.scalar);
    probe.first = next_;
    next_ += probe.num_vectors();
    std::vector<ValueId> inputs = {graph_.stream()};
    if (probe.has_experts()) {
      inputs = {added.source->inputs.at(0)};
      if (probe.part.has_shared) inputs.push_back(added.source->inputs.at(2));
    }
    return {kAttributionProbe,
            node.layer,
            std::move(inputs),
            {},
            std::make_shared<const AttributionProbeParameters>(std::move(probe))};
  }

  OpNode behind_head(const OpNode& node) const {
    const NormWeight norm =
        graph_.nodes[graph_.heads.at(0).final_norm].parameters->norm_weight().value();
    const LogitMatrix own = node.parameters->logits().value();
    AttributionParameters last;
    last.matrix = own.module;
    last.multiplier = own.multiplier;
    last.soft_cap = own.soft_cap * own.multiplier;
    last.norm = norm.weight;
    last.eps = norm.eps;
    return {"attribution",
            -1,
            {graph_.stream()},
            {},
            std::make_shared<const AttributionParameters>(std::move(last))};
  }

  const Graph& graph_;
  int64_t next_ = 0;  // of the kept vectors
};

}  // namespace

void add_attribution(Graph& graph) {
  ProbeMaker maker(graph);
  insert_nodes(
      graph, [](const OpNode&) { return std::vector<OpNode>(); },
      [&maker](const OpNode& node) { return maker.behind(node); });
}

std::vector<AttributionPart> attribution_parts(const Graph& graph) {
  std::vector<AttributionPart> parts;
  for (const OpNode& node : graph.nodes) {
    const auto* probe = node.find<AttributionProbeParameters>();
    if (probe == nullptr) continue;
    AttributionPart part;
    part.kind = probe->part.kind;
    part.layer = node.layer;
    part.first = static_cast<int32_t>(probe->first);
    part.scalar = probe->scalar;
    if (probe->has_experts()) {
      part.top_k = static_cast<int32_t>(probe->part.top_k);
      part.has_shared = probe->part.has_shared;
      part.multiplier = probe->part.multiplier;
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

int32_t attribution_vectors(const Graph& graph) {
  const std::vector<AttributionPart> parts = attribution_parts(graph);
  return parts.empty() ? 0 : parts.back().first + parts.back().num_vectors();
}

double attribution_soft_cap(const Graph& graph) {
  for (const OpNode& node : graph.nodes) {
    const auto* own = node.find<AttributionParameters>();
    if (own != nullptr) return own->soft_cap;
  }
  return 0;
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
  if (attribution_soft_cap(graph) > 0) terms.push_back({Term::Kind::kSoftCap, -1, -1});
  return terms;
}

}  // namespace vitrine::ops
