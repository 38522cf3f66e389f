// SPDX-License-Identifier: Apache-2.0
// Where a graph is probed for attribution, and the terms that come of it.
#include "ops/attribution.h"

#include "ops/decoder_ops.h"

namespace vitrine::ops {

using Term = AuditLayout::Term;

void add_attribution(Graph& graph) {
  for (const OpNode& node : graph.nodes) {
    if (dynamic_cast<const PostNormParameters*>(node.parameters.get()) == nullptr) continue;
    throw Error(ErrorKind::kUnsupported,
                "engine option 'attribution' is not there for models that norm what a block gives "
                "before they add it (gemma4, flex_olmo); expected it to be off");
  }
  const ValueId stream = graph.nodes.at(0).outputs.at(0);
  int64_t next = 0;
  insert_nodes(
      graph, [](const OpNode&) { return std::vector<OpNode>(); },
      [&](const OpNode& node) {
        std::vector<OpNode> probes;
        if (const std::optional<ResidualPart> part = node.parameters->residual(graph, node)) {
          AttributionProbeParameters probe;
          probe.part = *part;
          probe.first = next;
          std::vector<ValueId> inputs = {stream};
          if (probe.has_experts()) {
            inputs = {node.inputs.at(0)};
            if (part->has_shared) inputs.push_back(node.inputs.at(2));
          }
          next += probe.num_vectors();
          probes.push_back({kAttributionProbe,
                            node.layer,
                            std::move(inputs),
                            {},
                            std::make_shared<const AttributionProbeParameters>(probe)});
        }
        const GraphHead& head = graph.heads.at(0);
        if (graph.is_head(node)) {
          const auto& norm = graph.nodes[head.final_norm].as<NormParameters>();
          const auto& own = node.as<HeadParameters>();
          AttributionParameters last;
          last.matrix = own.matrix;
          last.multiplier = own.multiplier;
          last.norm = norm.weight;
          last.eps = norm.eps;
          probes.push_back({"attribution",
                            -1,
                            {stream},
                            {},
                            std::make_shared<const AttributionParameters>(last)});
        }
        return probes;
      });
}

std::vector<AttributionPart> attribution_parts(const Graph& graph) {
  std::vector<AttributionPart> parts;
  for (const OpNode& node : graph.nodes) {
    const auto* probe = dynamic_cast<const AttributionProbeParameters*>(node.parameters.get());
    if (probe == nullptr) continue;
    AttributionPart part;
    part.kind = probe->part.kind;
    part.layer = node.layer;
    part.first = static_cast<int32_t>(probe->first);
    if (probe->has_experts()) {
      part.top_k = static_cast<int32_t>(probe->part.top_k);
      part.has_shared = probe->part.has_shared;
      part.multiplier = probe->part.multiplier;
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
