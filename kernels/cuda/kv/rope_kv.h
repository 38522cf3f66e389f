// SPDX-License-Identifier: Apache-2.0
// Between the projections and attention: norm of query and key heads, clamp, rotation, and the
// write to the KV cache, in one pass.
#pragma once

#include "kernels/cuda/kv/kv_cache.h"

namespace vitrine::kernels::cuda {

/// Words of RopeKv::branches for a token.
inline constexpr int32_t kBranchWords = 8;

struct RopeKv {
  int32_t heads = 0;  ///< query heads
  /// [tokens, qkv_stride] float32: query heads, key heads, value heads, head_dim each.
  const float* qkv = nullptr;
  int64_t qkv_stride = 0;
  const float* query_norm =
      nullptr;                      ///< [head_dim] weight of each query head's RMSNorm; null: none
  const float* key_norm = nullptr;  ///< [head_dim]; null: none
  /// One norm over all query heads of a token and one over its key heads, with weights [heads *
  /// head_dim] and [kv_heads * head_dim].
  bool norm_whole_row = false;
  float eps = 0;
  float clip = 0;              ///< queries, keys and values to [-clip, clip]; 0: not
  int32_t rotary_dim = 0;      ///< first elements of a head that are rotated: even, 2 to head_dim
  const float* cos = nullptr;  ///< [positions, rotary_dim / 2]
  const float* sin = nullptr;
  const int32_t* positions = nullptr;  ///< [tokens]
  BlockTables blocks = {};
  /// [tokens, kBranchWords] or null. Where bit j of a token is set, its key and value also go to
  /// its position in the table j + 1 rows behind its own: that of a branch of drafts which sees it.
  const uint32_t* branches = nullptr;
  KvCache cache = {};     ///< head_dim: even, at most 256
  void* query = nullptr;  ///< [tokens, heads, head_dim] out
  FloatFormat query_format = FloatFormat::kF32;
};

/// Each element has the bits of the CPU kernels' rms_norm, clamp, rope and kv_write.
Status rope_kv_write(const RopeKv& step, int32_t tokens, Stream stream);

}  // namespace vitrine::kernels::cuda
