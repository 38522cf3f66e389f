// SPDX-License-Identifier: Apache-2.0
// Private to the room: where a model's experts are chosen.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ops/graph.h"
#include "vitrine/engine.h"

namespace vitrine::compress {

/// A layer with experts, and the tap that shows which ones a token goes through.
struct ExpertLayer {
  int layer = 0;
  int64_t experts = 0;
  int64_t columns = 0;  ///< of what they read
  size_t tap = 0;       ///< in EngineOptions::taps
};

/// Returns the graph of a model. Throws what Checkpoint::open and the parsing of configs throw.
ops::Graph graph_of(const std::string& model);

/// Finds the layers with experts, in their order, and adds a tap for each.
std::vector<ExpertLayer> add_expert_taps(const ops::Graph& graph, EngineOptions& options);

/// Returns how many tokens an expert needs for products of full rank; 0 where there are none.
int64_t columns_of_experts(std::span<const ExpertLayer> layers);

/// Throws kInvalidArgument where there is no text or one has no tokens.
void require_texts(std::span<const std::vector<int32_t>> texts);

}  // namespace vitrine::compress
