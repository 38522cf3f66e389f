// SPDX-License-Identifier: Apache-2.0
#include "engine/run/kv_budget.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "engine/engine_options.h"
#include "engine/run/kv_choice.h"
#include "kv/state_pool.h"

namespace vitrine::engine {

namespace {

constexpr int64_t kFurtherStates = kv::StateCheckpoints::kMost;

[[noreturn]] void refuse_block() {
  throw Error(ErrorKind::kOutOfMemory,
              "a KV block of this model has more bytes than an address reaches; expected another "
              "config");
}

// Returns a * b; throws kOutOfMemory where the product has more bytes than an address reaches.
uint64_t block_product(uint64_t a, uint64_t b) {
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(a, b, &bytes)) refuse_block();
  return bytes;
}

bool is_fused_cpu(const EngineOptions& options) {
  return options.device.kind == DeviceKind::kCpu && runs_fused(options);
}

int64_t block_length_of(const EngineOptions& options) {
  return options.kv_block_size > 0 ? options.kv_block_size : kv_codec(options, 0).block_length;
}

bool keeps_keys(const ops::Graph& graph, int layer) {
  return graph.kv_shape(layer).source == layer && !graph.keeps_state(layer);
}

// Whether a layer's blocks have open forms that can be given back when they are closed.
bool closes_blocks(const EngineOptions& options, const ops::Graph& graph, int layer) {
  return is_fused_cpu(options) && keeps_keys(graph, layer) &&
         kv::closes_blocks(kv_codec(options, layer), graph.kv_shape(layer).head_dim);
}

}  // namespace

BlockPlanes layer_block_bytes(const EngineOptions& options, const ops::Graph& graph, int layer) {
  if (!keeps_keys(graph, layer)) return {};
  const ops::KvShape shape = graph.kv_shape(layer);
  const kv::CodecEntry& codec = kv_codec(options, layer);
  const bool has_values = graph.value_dim == 0;  // else they are the keys' beginnings
  const auto heads = static_cast<uint64_t>(shape.kv_heads);
  const auto length = static_cast<uint64_t>(block_length_of(options));
  if (is_fused_cpu(options) && codec.tiles != nullptr) {
    const kv::PlaneBytes head = kv::plane_bytes(
        codec, shape.head_dim, has_values ? shape.head_dim : 0, block_length_of(options));
    return {block_product(heads, static_cast<uint64_t>(head.first)),
            block_product(heads, static_cast<uint64_t>(head.second))};
  }
  uint64_t key = 0, value = 0;  // bytes of one position and head
  if (is_fused_cpu(options)) {
    const kv::PlaneBytes head =
        kv::plane_bytes(codec, shape.head_dim, has_values ? shape.head_dim : 0, 1);
    key = static_cast<uint64_t>(head.first);
    value = static_cast<uint64_t>(head.second);
  } else {
    const auto type =
        (runs_fused(options) ? codec.device_type : codec.reference_type).value_or(DType::kF32);
    const uint64_t scale = type == DType::kI16 ? sizeof(float) : 0;
    key = static_cast<uint64_t>(shape.head_dim) * dtype_size(type) + scale;
    value = has_values ? key : scale;
  }
  const uint64_t rows = block_product(heads, length);
  return {block_product(rows, key), block_product(rows, value)};
}

uint64_t layer_open_bytes(const EngineOptions& options, const ops::Graph& graph, int layer) {
  if (!closes_blocks(options, graph, layer)) return 0;
  return layer_block_bytes(options, graph, layer).values;
}

namespace {

// Counts the bytes of one block in the layers that see all positions, and in those within a window.
struct BlockBytes {
  uint64_t full = 0, windowed = 0;
  uint64_t sum() const { return full + windowed; }
};

BlockBytes block_bytes(const EngineOptions& options, const ops::Graph& graph,
                       std::span<const int64_t> windows) {
  BlockBytes bytes;
  uint64_t all = 0;
  for (int layer = 0; layer < graph.num_layers; ++layer) {
    const uint64_t of_layer = layer_block_bytes(options, graph, layer).sum();
    if (__builtin_add_overflow(all, of_layer, &all)) refuse_block();
    const bool is_windowed = !windows.empty() && windows[static_cast<size_t>(layer)] > 0;
    const uint64_t open = windows.empty() ? 0 : layer_open_bytes(options, graph, layer);
    (is_windowed ? bytes.windowed : bytes.full) += of_layer - open;
    bytes.windowed += open;
  }
  return bytes;
}

uint64_t blocks_of_context(const EngineOptions& options) {
  return static_cast<uint64_t>((int64_t{options.max_context} + options.kv_block_size - 1) /
                               options.kv_block_size);
}

// Returns by layer how many positions those who read its keys and values see at most; 0: all. Empty
// where all blocks stay, open forms of closed ones too: not on the CPU's fused kernels, or beside
// states, which have checkpoints of their own.
std::vector<int64_t> layer_windows(const EngineOptions& options, const ops::Graph& graph) {
  if (!is_fused_cpu(options) || graph.has_state()) return {};
  constexpr int64_t kUnread = -1;
  std::vector<int64_t> windows(static_cast<size_t>(graph.num_layers), kUnread);
  for (const ops::OpNode& node : graph.nodes) {
    const auto reads = node.parameters->kv_reads();
    if (!reads) continue;
    int64_t& window = windows[static_cast<size_t>(graph.kv_shape(node.layer).source)];
    if (window != 0) window = reads->window == 0 ? 0 : std::max(window, reads->window);
  }
  for (int64_t& window : windows) window = std::max<int64_t>(window, 0);
  bool gives_back = std::ranges::any_of(windows, [](int64_t window) { return window > 0; });
  for (int layer = 0; layer < graph.num_layers; ++layer) {
    gives_back = gives_back || closes_blocks(options, graph, layer);
  }
  return gives_back ? windows : std::vector<int64_t>();
}

constexpr uint64_t kMostBlocks = std::numeric_limits<int32_t>::max();

// What a budget is divided among.
struct Kinds {
  std::vector<int64_t> windows;  // by layer, as layer_windows() has them
  BlockBytes bytes;
  kv::PoolSizes sizes;  // but for the blocks
  uint64_t all = 0;     // blocks that hold max_context of each of max_sequences
  uint64_t enough = 0;  // that layers within a window have use for; more are prefixes'
};

Kinds find_kinds(const EngineOptions& options, const ops::Graph& graph) {
  Kinds kinds;
  kinds.windows = layer_windows(options, graph);
  kinds.bytes = block_bytes(options, graph, kinds.windows);
  kinds.sizes = {0,
                 options.kv_block_size,
                 options.max_context,
                 options.max_sequences,
                 graph.num_layers,
                 num_states(options, graph)};
  kinds.sizes.max_step_tokens = options.max_step_tokens;
  const auto sequences = static_cast<uint64_t>(options.max_sequences);
  kinds.all = std::min(blocks_of_context(options) * sequences, kMostBlocks);
  if (kinds.windows.empty()) return kinds;
  kinds.sizes.window =
      std::min<int64_t>(std::ranges::max(kinds.windows), std::numeric_limits<int32_t>::max());
  // A block is read open by queries up to its codec's lag behind it.
  for (int layer = 0; layer < graph.num_layers; ++layer) {
    if (!closes_blocks(options, graph, layer)) continue;
    const int64_t open = kv_codec(options, layer).tiles->lag() + 1;
    kinds.sizes.window = std::max(kinds.sizes.window, open);
  }
  kinds.enough = static_cast<uint64_t>(kv::enough_window_blocks(kinds.sizes));
  return kinds;
}

// Divides what is left of kv_bytes beside states. Layers within a window have as many blocks as
// their sequences need, the others the rest. Where these would have no more than that, or no layer
// sees all positions and the pool holds them, every layer has the same and keeps them.
KvBlocks divide(uint64_t budget, const Kinds& kinds) {
  const BlockBytes& bytes = kinds.bytes;
  const uint64_t alike = std::min(budget / bytes.sum(), kMostBlocks);
  KvBlocks found{static_cast<int64_t>(alike)};
  if (kinds.windows.empty()) return found;
  uint64_t full = 0, windowed = alike;
  if (bytes.full == 0) {
    // One sequence at a time goes on whatever its length.
    const kv::PoolSizes& sizes = kinds.sizes;
    const int64_t least = kv::most_window_blocks(1, sizes.window, sizes.block_size) +
                          kv::step_window_blocks(sizes.max_step_tokens, sizes.block_size);
    if (alike >= kinds.all || alike < static_cast<uint64_t>(least)) return found;
  } else {
    if (budget / bytes.windowed < kinds.enough) return found;
    const uint64_t left = budget - kinds.enough * bytes.windowed;
    full = std::min(left / bytes.full, kMostBlocks);
    windowed = kinds.enough;
    if (full <= kinds.enough) return found;
    if (full > kinds.all) {  // prefixes have the rest, of both
      const uint64_t more = (left - kinds.all * bytes.full) / bytes.sum();
      full = std::min(kinds.all + more, kMostBlocks);
      windowed = std::min(kinds.enough + more, kMostBlocks);
    }
  }
  found = {static_cast<int64_t>(full), static_cast<int64_t>(windowed), kinds.sizes.window};
  for (const int64_t window : kinds.windows) found.is_windowed.push_back(window > 0);
  return found;
}

// Returns what states leave of the model's own part of kv_bytes.
uint64_t bytes_beside_states(uint64_t own, const EngineOptions& options, const ops::Graph& graph) {
  const uint64_t states = state_bytes(options, graph);
  return own > states ? own - states : 0;
}

[[noreturn]] void refuse_parts(const EngineOptions& options, uint64_t own, uint64_t least) {
  const uint64_t drafters = options.draft_kv_bytes.value_or(0);
  throw Error(ErrorKind::kOutOfMemory,
              "engine option 'kv_bytes' is " + std::to_string(own + drafters) + ", of which " +
                  std::to_string(drafters) + " are drafters' ('draft_kv_bytes') and " +
                  std::to_string(own) + " the model's; expected at least " + std::to_string(least) +
                  " for the model, " + std::to_string(least + drafters) +
                  " in all, or a smaller part of the drafters'");
}

}  // namespace

uint64_t own_kv_bytes(const EngineOptions& options) {
  const uint64_t drafters = options.draft_kv_bytes.value_or(0);
  if (options.kv_bytes == 0 || options.kv_bytes > drafters) {
    return options.kv_bytes == 0 ? 0 : options.kv_bytes - drafters;
  }
  throw Error(ErrorKind::kOutOfMemory,
              "engine option 'kv_bytes' is " + std::to_string(options.kv_bytes) +
                  ", and drafters' part of it ('draft_kv_bytes') is " + std::to_string(drafters) +
                  ", which leaves the model none; expected more in all, or a smaller part");
}

uint64_t kv_block_bytes(const EngineOptions& options, const ops::Graph& graph) {
  return block_bytes(options, graph, {}).sum();
}

int64_t num_states(const EngineOptions& options, const ops::Graph& graph) {
  if (!graph.has_state()) return 0;
  if (options.max_states > 0) return options.max_states;
  return 2 * int64_t{options.max_sequences} + kFurtherStates;
}

uint64_t state_bytes(const EngineOptions& options, const ops::Graph& graph) {
  const int64_t floats =
      std::accumulate(graph.state_floats.begin(), graph.state_floats.end(), int64_t{0});
  return static_cast<uint64_t>(num_states(options, graph)) * static_cast<uint64_t>(floats) *
         sizeof(float);
}

void resolve_kv_budget(EngineOptions& options, const ops::Graph& graph) {
  const Kinds kinds = find_kinds(options, graph);
  const BlockBytes& bytes = kinds.bytes;
  const uint64_t states = state_bytes(options, graph);
  if (options.kv_bytes > 0) {
    options.kv_bytes = own_kv_bytes(options);
    options.draft_kv_bytes = options.draft_kv_bytes.value_or(0);
  }
  const auto require_address = [](bool reaches) {
    if (reaches) return;
    throw Error(ErrorKind::kOutOfMemory,
                "the KV pool would have more bytes than an address reaches; lower max_context or "
                "max_sequences, or give kv_bytes");
  };
  if (options.kv_bytes == 0) {
    uint64_t windowed = 0;
    require_address(
        !__builtin_mul_overflow(kinds.all, bytes.full, &options.kv_bytes) &&
        !__builtin_mul_overflow(std::min(kinds.all, kinds.enough), bytes.windowed, &windowed) &&
        !__builtin_add_overflow(options.kv_bytes, windowed, &options.kv_bytes) &&
        !__builtin_add_overflow(options.kv_bytes, states, &options.kv_bytes));
  }
  const KvBlocks blocks = divide(bytes_beside_states(options.kv_bytes, options, graph), kinds);
  const uint64_t per_sequence = blocks_of_context(options);
  const uint64_t drafters = options.draft_kv_bytes.value_or(0);
  if (blocks.full + blocks.windowed == 0 && drafters > 0) {
    refuse_parts(options, options.kv_bytes, states + bytes.sum());
  }
  if (blocks.full + blocks.windowed == 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "engine option 'kv_bytes' is " + std::to_string(options.kv_bytes) +
                    "; expected at least " + std::to_string(states + bytes.sum()) +
                    (states > 0 ? ", the states and one block of " : ", one block of ") +
                    std::to_string(options.kv_block_size) + " positions, or " +
                    std::to_string(states + per_sequence * bytes.sum()) + " for a whole context");
  }
  const auto full = static_cast<uint64_t>(blocks.full);
  options.kv_bytes =
      states + (blocks.windowed == 0
                    ? full * bytes.sum()
                    : full * bytes.full + static_cast<uint64_t>(blocks.windowed) * bytes.windowed);
  require_address(!__builtin_add_overflow(options.kv_bytes, drafters, &options.kv_bytes) &&
                  options.kv_bytes <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  if (full > 0 && full < per_sequence) {
    options.max_context = static_cast<int>(blocks.full) * options.kv_block_size;
  }
}

KvBlocks find_kv_blocks(const EngineOptions& options, const ops::Graph& graph) {
  return divide(bytes_beside_states(own_kv_bytes(options), options, graph),
                find_kinds(options, graph));
}

kv::PoolSizes pool_sizes(const EngineOptions& options, const ops::Graph& graph,
                         const KvBlocks& blocks) {
  return {blocks.full,           options.kv_block_size, options.max_context,
          options.max_sequences, graph.num_layers,      num_states(options, graph),
          blocks.window,         blocks.windowed,       options.max_step_tokens};
}

kv::PoolSizes no_pool(const EngineOptions& options) {
  return {.block_size = options.kv_block_size};
}

void add_context(const EngineOptions& options, const ops::Graph& graph, const KvBlocks& blocks,
                 ModelSummary& summary) {
  summary.table_bytes += kv::BlockPool::bytes_of(pool_sizes(options, graph, blocks));
  if (options.kernels != KernelPath::kReference) return;
  // The reference has made a block and a state for its first pass, which stand beside the pool.
  const uint64_t block = kv_block_bytes(options, graph);
  const uint64_t state = summary.kv_bytes - block;  // less than the fused kernels keep
  summary.kv_bytes += static_cast<uint64_t>(blocks.full) * block +
                      static_cast<uint64_t>(num_states(options, graph)) * state;
}

std::vector<uint64_t> split_kv_bytes(const EngineOptions& options,
                                     std::span<const ops::Graph> graphs) {
  std::vector<uint64_t> parts;
  std::vector<uint64_t> states;
  for (const ops::Graph& graph : graphs) {
    parts.push_back(kv_block_bytes(options, graph));
    states.push_back(state_bytes(options, graph));
  }
  const uint64_t blocks = std::accumulate(parts.begin(), parts.end(), uint64_t{0});
  const uint64_t all = std::accumulate(states.begin(), states.end(), blocks);
  if (options.kv_bytes > 0 && options.kv_bytes < all) {
    throw Error(ErrorKind::kInvalidArgument, "engine option 'kv_bytes' is " +
                                                 std::to_string(options.kv_bytes) +
                                                 "; expected at least " + std::to_string(all) +
                                                 ", one block of each specialist");
  }
  if (options.kv_bytes == 0) return std::vector<uint64_t>(parts.size(), 0);
  const uint64_t count = (options.kv_bytes - (all - blocks)) / blocks;
  for (size_t i = 0; i < parts.size(); ++i) parts[i] = parts[i] * count + states[i];
  return parts;
}

}  // namespace vitrine::engine
