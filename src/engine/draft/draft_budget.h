// SPDX-License-Identifier: Apache-2.0
// What drafters with models of their own have of the target engine's budget of keys and values.
#pragma once

#include <cstdint>
#include <string>

#include "ops/graph.h"
#include "vitrine/engine.h"

namespace vitrine::engine {

/// Bytes of keys and values that a drafter's models have use for.
struct DraftNeed {
  uint64_t least = 0;  // one block of each model, and its states
  uint64_t whole = 0;  // with which each of the sequences can reach its context

  /// Adds a model's. Its options are resolved, without kv_bytes of their own.
  void add(const EngineOptions& options, const ops::Graph& graph);
};

/// Returns EngineOptions::kv_bytes for what `drafter` names: the target's draft_kv_bytes, or 0
/// where it may take as much as it needs. Throws kOutOfMemory for less than the least.
uint64_t draft_budget(const std::string& drafter, const DraftNeed& need,
                      const EngineOptions& target);

}  // namespace vitrine::engine
