// SPDX-License-Identifier: Apache-2.0
// Where a graph is probed for attribution, and the terms that come of it.
#include <algorithm>

#include "ops/attribution.h"
#include "ops/decoder_ops.h"

namespace vitrine::ops {

using Term = AuditLayout::Term;

namespace {

/// Makes the probes behind each node of a graph, in its order.
class ProbeMaker {
 public:
  explicit ProbeMaker(const Graph& graph) : graph_(graph), stream_(graph.nodes.at(0).outputs[0]) {}

  std::vector<OpNode> behind(const OpNode& node) {
    std::vector<OpNode> probes;
    if (const std::optional<ResidualPart> part = node.parameters->residual(graph_, node)) {
      AttributionProbeParameters probe;
      probe.part = *part;
      add(node, node, std::move(probe), probes);
    } else if (const auto* own = node.find<PostNormParameters>()) {
      add_normed(node, *own, probes);
    }
    if (graph_.is_head(node)) probes.push_back(behind_head(node));
    return probes;
  }

 private:
  /// `source` is the op whose experts are kept, if they are.
  void add(const OpNode& node, const OpNode& source, AttributionProbeParameters probe,
           std::vector<OpNode>& probes) {
    probe.first = next_;
    next_ += probe.num_vectors();
    std::vector<ValueId> inputs = {stream_};
    if (probe.has_experts()) {
      inputs = {source.inputs.at(0)};
      if (probe.part.has_shared) inputs.push_back(source.inputs.at(2));
    }
    probes.push_back({kAttributionProbe,
                      node.layer,
                      std::move(inputs),
                      {},
                      std::make_shared<const AttributionProbeParameters>(std::move(probe))});
  }

  /// The routed experts among the branches of a post_norm, then what is left of the stream.
  void add_normed(const OpNode& node, const PostNormParameters& own, std::vector<OpNode>& probes) {
    const size_t branches = node.inputs.size() - 1;
    size_t sums = 0;
    for (size_t i = 0; i < branches; ++i) {
      const OpNode* combine = combine_of(node, node.inputs[i]);
      if (combine == nullptr) continue;
      ++sums;
      AttributionProbeParameters probe;
      probe.part = combine->as<CombineParameters>().part(graph_, *combine);
      if (own.has_two()) probe.norms.push_back({own.inner.at(i), static_cast<int32_t>(1 + i)});
      probe.norms.push_back({own.weight, 0});
      probe.eps = own.eps;
      if (sums == branches) probe.scalar = own.scalar;
      add(node, *combine, std::move(probe), probes);
    }
    if (sums == branches) return;
    AttributionProbeParameters probe;
    probe.part.kind = own.part;
    probe.scalar = own.scalar;
    add(node, node, std::move(probe), probes);
  }

  /// The op of the same layer that makes a value by adding experts up; null where none does.
  const OpNode* combine_of(const OpNode& node, ValueId value) const {
    for (const OpNode* before = &node; before-- != graph_.nodes.data();) {
      if (std::ranges::find(before->outputs, value) == before->outputs.end()) continue;
      return before->find<CombineParameters>() != nullptr ? before : nullptr;
    }
    return nullptr;
  }

  OpNode behind_head(const OpNode& node) const {
    const auto& norm = graph_.nodes[graph_.heads.at(0).final_norm].as<NormParameters>();
    const auto& own = node.as<HeadParameters>();
    AttributionParameters last;
    last.matrix = own.matrix;
    last.multiplier = own.multiplier;
    last.soft_cap = own.soft_cap * own.multiplier;
    last.norm = norm.weight;
    last.eps = norm.eps;
    return {"attribution",
            -1,
            {stream_},
            {},
            std::make_shared<const AttributionParameters>(std::move(last))};
  }

  const Graph& graph_;
  ValueId stream_;
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
