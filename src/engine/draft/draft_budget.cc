// SPDX-License-Identifier: Apache-2.0
#include "engine/draft/draft_budget.h"

#include "engine/run/kv_budget.h"

namespace vitrine::engine {

void DraftNeed::add(const EngineOptions& options, const ops::Graph& graph) {
  least += kv_block_bytes(options, graph) + state_bytes(options, graph);
  whole += options.kv_bytes;
}

uint64_t draft_budget(const std::string& drafter, const DraftNeed& need,
                      const EngineOptions& target) {
  const uint64_t given = target.draft_kv_bytes.value_or(need.whole);
  if (given >= need.least) return target.draft_kv_bytes.value_or(0);
  throw Error(ErrorKind::kOutOfMemory,
              drafter + " needs " + std::to_string(need.whole) +
                  " bytes of keys and values, at least " + std::to_string(need.least) +
                  "; of the engine's " + std::to_string(target.kv_bytes) +
                  " (engine option 'kv_bytes') " + std::to_string(given) +
                  " are drafters' ('draft_kv_bytes') and the others the model's; expected a larger "
                  "part");
}

}  // namespace vitrine::engine
