// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_budget.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>

#include "engine/engine_options.h"

namespace vitrine::engine {

kernels::KvFormat kv_format(DType type) {
  switch (type) {
    case DType::kF16: return kernels::KvFormat::kF16;
    case DType::kBF16: return kernels::KvFormat::kBF16;
    case DType::kI16: return kernels::KvFormat::kI16;
    default: return kernels::KvFormat::kF32;
  }
}

uint64_t kv_block_bytes(const EngineOptions& options, const ModelConfig& config) {
  kernels::KvFormat format = kv_format(*options.kv_dtype);
  // The reference path rounds to integers, and keeps them as float32.
  const bool keeps_integers = options.device.kind == DeviceKind::kCpu && runs_fused(options);
  if (format == kernels::KvFormat::kI16 && !keeps_integers) format = kernels::KvFormat::kF32;
  uint64_t bytes = 2;  // keys and values
  const int64_t factors[] = {kernels::kv_position_bytes(format, config.head_dim),
                             config.num_kv_heads, options.kv_block_size, config.num_layers};
  for (const int64_t factor : factors) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(factor), &bytes)) {
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
