// SPDX-License-Identifier: Apache-2.0
// Direct logit attribution: a token's logit as a sum of the parts that the residual stream is made
// of (Elhage et al. 2021; nostalgebraist 2020), the final norm's scale frozen at its actual value.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ops/graph.h"
#include "vitrine/audit_sink.h"

namespace vitrine::ops {

struct PlanContext;

inline constexpr const char* kAttributionProbe = "attribution_probe";
/// Numbers that a token has in post_norm_mean_squares: one of what is added, then two of branches.
inline constexpr int64_t kPostNormMeanSquares = 3;

/// Keeps what an op added to the residual stream: the stream behind it or, of experts, their own
/// vectors.
struct AttributionProbeParameters final : OpParametersOf<AttributionProbeParameters> {
  static constexpr std::string_view kKind = "attribution_probe";
  ResidualPart part;
  int64_t first = 0;              // of the kept vectors
  std::vector<PassedNorm> norms;  // of experts
  double eps = 0;                 // of these
  std::string scalar;  // [1] the stream is multiplied with it behind the sum; empty: it is not

  bool has_experts() const { return part.kind == AuditLayout::Term::Kind::kExpert; }
  int64_t num_vectors() const { return has_experts() ? part.top_k + (part.has_shared ? 1 : 0) : 1; }
};

/// Behind the head: the terms of the chosen token's logit.
struct AttributionParameters final : OpParametersOf<AttributionParameters> {
  static constexpr std::string_view kKind = "attribution";
  std::string matrix;  // the head's
  double multiplier = 1;
  double soft_cap = 0;  // of the logit, behind the multiplier; 0: none
  std::string norm;     // the final one's
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
  std::string scalar =
      {};  // [1] the stream is multiplied with it behind the part; empty: it is not

  int32_t num_vectors() const {
    return kind == AuditLayout::Term::Kind::kExpert ? top_k + (has_shared ? 1 : 0) : 1;
  }
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
/// keeps them as they are. An op that has one token to compute writes them there, which spares the
/// copy.
float* kept_experts(PlanContext& context, int layer);
/// [rows]: the mean squares of the residual stream, as the final norm found them; null where
/// nothing attributes.
float* final_mean_squares(PlanContext& context);
/// [tokens, kPostNormMeanSquares], as the latest post_norm found them; null where nothing
/// attributes.
float* post_norm_mean_squares(PlanContext& context);
/// The cap of the head's logits; 0 where there is none, or no attribution.
double attribution_soft_cap(const Graph& graph);
/// The terms that come of the parts, in the order in which a row record holds them.
std::vector<AuditLayout::Term> attribution_terms(const Graph& graph);

}  // namespace vitrine::ops
