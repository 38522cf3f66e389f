// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_budget.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "engine/engine_options.h"
#include "engine/kv_choice.h"
#include "kv/state_pool.h"
#include "model/decoder.h"

namespace vitrine::engine {

namespace {

constexpr int64_t kFurtherStates = kv::StateCheckpoints::kMost;

// Of one position and kv head, key and value.
int64_t position_bytes(const kv::KvCodec& codec, const EngineOptions& options,
                       const ModelConfig& config, int64_t layer) {
  const int64_t key = config.layer_head_dim(layer);
  const int64_t value = config.is_latent() ? config.stored_value_width() : key;
  if (options.device.kind == DeviceKind::kCpu && runs_fused(options)) {
    return codec.key_bytes(key) + (value > 0 ? codec.value_bytes(value) : 0);
  }
  const auto type = runs_fused(options) ? codec.device_type : codec.reference_type;
  const int64_t scales = type == DType::kI16 ? 2 * sizeof(float) : 0;  // of a key and a value
  return (key + value) * static_cast<int64_t>(dtype_size(type.value_or(DType::kF32))) + scales;
}

}  // namespace

uint64_t kv_block_bytes(const EngineOptions& options, const ModelConfig& config) {
  const auto block_length = static_cast<uint64_t>(
      options.kv_block_size > 0 ? options.kv_block_size : kv_codec(options, 0).block_length);
  uint64_t bytes = 0;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.kv_source(layer) != layer || config.is_linear_layer(layer)) continue;  // none kept
    const auto heads = static_cast<uint64_t>(config.layer_kv_heads(layer));
    auto of_layer =
        static_cast<uint64_t>(position_bytes(kv_codec(options, layer), options, config, layer));
    if (__builtin_mul_overflow(of_layer, heads, &of_layer) ||
        __builtin_mul_overflow(of_layer, block_length, &of_layer) ||
        __builtin_add_overflow(bytes, of_layer, &bytes)) {
      throw Error(ErrorKind::kOutOfMemory,
                  "a KV block of this model has more bytes than an address reaches; expected "
                  "another config");
    }
  }
  return bytes;
}

int64_t num_states(const EngineOptions& options, const ModelConfig& config) {
  return config.linear_layers.empty() ? 0 : 2 * int64_t{options.max_sequences} + kFurtherStates;
}

uint64_t state_bytes(const EngineOptions& options, const ModelConfig& config) {
  if (config.linear_layers.empty()) return 0;
  const auto layers = static_cast<uint64_t>(std::ranges::count(config.linear_layers, true));
  const auto floats = static_cast<uint64_t>(model::state_floats(config));
  return static_cast<uint64_t>(num_states(options, config)) * layers * floats * sizeof(float);
}

void resolve_kv_budget(EngineOptions& options, const ModelConfig& config) {
  const uint64_t block_bytes = kv_block_bytes(options, config);
  const uint64_t states = state_bytes(options, config);
  const auto per_sequence = static_cast<uint64_t>(
      (options.max_context + options.kv_block_size - 1) / options.kv_block_size);
  uint64_t blocks = per_sequence * static_cast<uint64_t>(options.max_sequences);
  if (options.kv_bytes > 0) {
    blocks = options.kv_bytes > states ? (options.kv_bytes - states) / block_bytes : 0;
  }
  if (blocks == 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "engine option 'kv_bytes' is " + std::to_string(options.kv_bytes) +
                    "; expected at least " + std::to_string(states + block_bytes) +
                    (states > 0 ? ", the states and one block of " : ", one block of ") +
                    std::to_string(options.kv_block_size) + " positions, or " +
                    std::to_string(states + per_sequence * block_bytes) + " for a whole context");
  }
  blocks = std::min<uint64_t>(blocks, std::numeric_limits<int32_t>::max());
  if (__builtin_mul_overflow(blocks, block_bytes, &options.kv_bytes) ||
      __builtin_add_overflow(options.kv_bytes, states, &options.kv_bytes) ||
      options.kv_bytes > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    throw Error(ErrorKind::kOutOfMemory,
                "the KV pool would have more bytes than an address reaches; lower max_context or "
                "max_sequences, or give kv_bytes");
  }
  if (blocks < per_sequence) {
    options.max_context = static_cast<int>(blocks) * options.kv_block_size;
  }
}

int64_t num_kv_blocks(const EngineOptions& options, const ModelConfig& config) {
  return static_cast<int64_t>((options.kv_bytes - state_bytes(options, config)) /
                              kv_block_bytes(options, config));
}

std::vector<uint64_t> split_kv_bytes(const EngineOptions& options,
                                     std::span<const ModelConfig> configs) {
  std::vector<uint64_t> parts;
  std::vector<uint64_t> states;
  for (const ModelConfig& config : configs) {
    parts.push_back(kv_block_bytes(options, config));
    states.push_back(state_bytes(options, config));
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
