// SPDX-License-Identifier: Apache-2.0
#include "vitrine/engine.h"

#include <algorithm>
#include <limits>

#include "engine/engine_options.h"
#include "engine/run/executor.h"
#include "engine/run/kv_budget.h"
#include "engine/run/kv_choice.h"
#include "model/architecture.h"

namespace vitrine {

std::vector<KvMemory> kv_memory(const Checkpoint& checkpoint, const EngineOptions& options) {
  using engine::KvBlocks;
  const ModelConfig config = engine::described_config(parse_model_config(checkpoint), options);
  ops::Graph graph = model::build_graph(checkpoint, config);
  const EngineOptions resolved = engine::resolve_options(options, checkpoint, config, graph);
  const KvBlocks blocks = engine::find_kv_blocks(resolved, graph);
  KvMemory full, windowed, states;
  for (int layer = 0; layer < graph.num_layers; ++layer) {
    if (graph.keeps_state(layer)) {
      ++states.layers;
    } else if (graph.kv_shape(layer).source == layer) {
      const bool is_windowed =
          !blocks.is_windowed.empty() && blocks.is_windowed[static_cast<size_t>(layer)];
      const auto add = [&](bool to_windowed, uint64_t bytes) {
        KvMemory& kind = to_windowed ? windowed : full;
        const int64_t count = to_windowed ? blocks.windowed : blocks.full;
        ++kind.layers;
        kind.positions = count * resolved.kv_block_size;
        kind.bytes += bytes * static_cast<uint64_t>(count);
      };
      const uint64_t bytes = engine::layer_block_bytes(resolved, graph, layer).sum();
      const uint64_t open = engine::layer_open_bytes(resolved, graph, layer);
      if (is_windowed || blocks.windowed == 0 || open == 0) {
        add(is_windowed, bytes);
      } else {  // open forms have blocks of their own
        add(false, bytes - open);
        add(true, open);
      }
    }
  }
  windowed.window = blocks.window;
  states.states = engine::num_states(resolved, graph);
  states.bytes = engine::state_bytes(resolved, graph);
  std::vector<KvMemory> kinds;
  for (const KvMemory& kind : {full, windowed, states}) {
    if (kind.layers > 0) kinds.push_back(kind);
  }
  const uint64_t drafters = resolved.draft_kv_bytes.value_or(0);
  if (drafters > 0) kinds.push_back({.bytes = drafters});
  return kinds;
}

int64_t longest_context(const Checkpoint& checkpoint, const EngineOptions& options,
                        uint64_t bytes) {
  const ModelConfig config = parse_model_config(checkpoint);
  ops::Graph graph = model::build_graph(checkpoint, config);
  EngineOptions first = options;
  first.max_context = 1;
  const EngineOptions resolved = engine::resolve_options(first, checkpoint, config, graph);
  // The context that the options have room for where it fits, else 0.
  const auto fitting = [&](int64_t context) -> int64_t {
    EngineOptions sized = resolved;
    sized.max_context = static_cast<int>(context);
    sized.kv_bytes = options.kv_bytes;
    engine::resolve_kv_codecs(sized, checkpoint, graph);  // some refuse a longer context
    engine::resolve_kv_budget(sized, graph);
    const engine::KvBlocks blocks = engine::find_kv_blocks(sized, graph);
    const uint64_t of_context = sized.kv_bytes + engine::rope_table_bytes(config, sized) +
                                kv::BlockPool::bytes_of(engine::pool_sizes(sized, graph, blocks));
    return of_context <= bytes ? sized.max_context : 0;
  };
  int64_t fits = 0;
  int64_t least = 1;
  int64_t most = std::min<int64_t>(config.max_position_embeddings, std::numeric_limits<int>::max());
  if (const int64_t whole = fitting(most); whole > 0) return whole;
  while (least <= most) {
    const int64_t middle = least + (most - least) / 2;
    const int64_t found = fitting(middle);
    fits = std::max(fits, found);
    if (found > 0) {
      least = middle + 1;
    } else {
      most = middle - 1;
    }
  }
  return fits;
}

}  // namespace vitrine
