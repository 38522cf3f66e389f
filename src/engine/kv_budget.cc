// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_budget.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "engine/engine_options.h"
#include "engine/kv_choice.h"

namespace vitrine::engine {

namespace {

// Of one position and kv head, key and value.
int64_t position_bytes(const kv::KvCodec& codec, const EngineOptions& options,
                       const ModelConfig& config) {
  const int64_t key = config.stored_key_width(), value = config.stored_value_width();
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
    auto of_layer =
        static_cast<uint64_t>(position_bytes(kv_codec(options, layer), options, config));
    if (__builtin_mul_overflow(of_layer, static_cast<uint64_t>(config.num_kv_heads), &of_layer) ||
        __builtin_mul_overflow(of_layer, block_length, &of_layer) ||
        __builtin_add_overflow(bytes, of_layer, &bytes)) {
      throw Error(ErrorKind::kOutOfMemory,
                  "a KV block of this model has more bytes than an address reaches; expected "
                  "another config");
    }
  }
  return bytes;
}

void resolve_kv_budget(EngineOptions& options, const ModelConfig& config) {
  const uint64_t block_bytes = kv_block_bytes(options, config);
  const auto per_sequence = static_cast<uint64_t>(
      (options.max_context + options.kv_block_size - 1) / options.kv_block_size);
  uint64_t blocks = per_sequence * static_cast<uint64_t>(options.max_sequences);
  if (options.kv_bytes > 0) blocks = options.kv_bytes / block_bytes;
  if (blocks == 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "engine option 'kv_bytes' is " + std::to_string(options.kv_bytes) +
                    "; expected at least " + std::to_string(block_bytes) + ", one block of " +
                    std::to_string(options.kv_block_size) + " positions, or " +
                    std::to_string(per_sequence * block_bytes) + " for a whole context");
  }
  blocks = std::min<uint64_t>(blocks, std::numeric_limits<int32_t>::max());
  if (__builtin_mul_overflow(blocks, block_bytes, &options.kv_bytes) ||
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
  return static_cast<int64_t>(options.kv_bytes / kv_block_bytes(options, config));
}

std::vector<uint64_t> split_kv_bytes(const EngineOptions& options,
                                     std::span<const ModelConfig> configs) {
  std::vector<uint64_t> parts;
  for (const ModelConfig& config : configs) parts.push_back(kv_block_bytes(options, config));
  const uint64_t all = std::accumulate(parts.begin(), parts.end(), uint64_t{0});
  if (options.kv_bytes > 0 && options.kv_bytes < all) {
    throw Error(ErrorKind::kInvalidArgument, "engine option 'kv_bytes' is " +
                                                 std::to_string(options.kv_bytes) +
                                                 "; expected at least " + std::to_string(all) +
                                                 ", one block of each specialist");
  }
  for (uint64_t& part : parts) part *= options.kv_bytes / all;
  return parts;
}

}  // namespace vitrine::engine
