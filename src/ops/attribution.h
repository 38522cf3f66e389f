// SPDX-License-Identifier: Apache-2.0
// Direct logit attribution: a token's logit as a sum of the parts that the residual stream is made
// of (Elhage et al. 2021; nostalgebraist 2020), the final norm's scale frozen at its actual value.
#pragma once

#include <vector>

#include "ops/graph.h"
#include "vitrine/audit_sink.h"

namespace vitrine::ops {

struct PlanContext;

inline constexpr const char* kAttributionProbe = "attribution_probe";

/// Keeps what an op added to the residual stream: the stream behind it or, of experts, their own
/// vectors.
struct AttributionProbeParameters final : OpParameters {
  ResidualPart part;
  int64_t first = 0;  // of the kept vectors

  bool has_experts() const { return part.kind == AuditLayout::Term::Kind::kExpert; }
  int64_t num_vectors() const { return has_experts() ? part.top_k + (part.has_shared ? 1 : 0) : 1; }
};

/// Behind the head: the terms of the chosen token's logit.
struct AttributionParameters final : OpParameters {
  std::string matrix;  // the head's
  double multiplier = 1;
  std::string norm;  // the final one's
  double eps = 0;
};

/// What of a pass is kept for its rows of logits, in the order of the graph.
struct AttributionPart {
  AuditLayout::Term::Kind kind = AuditLayout::Term::Kind::kEmbedding;
  int layer = -1;
  int32_t first = 0;        // of the kept vectors
  int32_t top_k = 0;        // kExpert: routed experts, each a vector before its weight
  bool has_shared = false;  // kExpert: a shared expert's vector stands behind them
  double multiplier = 1.0;  // kExpert: of the block's sum
};

/// Puts a probe behind each op that adds to the residual stream and one behind the head. The graph
/// computes what it computed before. Behind experts the stream is not kept: their own vectors are.
void add_attribution(Graph& graph);
/// The probes of a graph, and how many vectors a row of logits keeps. Empty where there are none.
std::vector<AttributionPart> attribution_parts(const Graph& graph);
int32_t attribution_vectors(const Graph& graph);
/// What the probes of a plan keep: the vectors [rows, vectors, hidden], and of those that are
/// experts' the gate weights [rows, vectors].
float* kept_vectors(PlanContext& context);
float* kept_weights(PlanContext& context);
/// Where the outputs of a layer's experts are kept for the first row of logits; null where no probe
/// keeps them. An op that has one token to compute writes them there, which spares the copy.
float* kept_experts(PlanContext& context, int layer);
/// [rows]: the mean squares of the residual stream, as the final norm found them; null where
/// nothing attributes.
float* final_mean_squares(PlanContext& context);
/// The terms that come of the parts, in the order in which a row record holds them.
std::vector<AuditLayout::Term> attribution_terms(const Graph& graph);

}  // namespace vitrine::ops
