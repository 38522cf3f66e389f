// SPDX-License-Identifier: Apache-2.0
// Rows of an embedding table.
#pragma once

#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

/// A table [vocab, n] on the device, row after row.
struct EmbeddingTable {
  enum class Kind : uint8_t {
    kFloat,  ///< `format`
    kInt8,   ///< int8, scale * q (+ minimum)
    kInt4,   ///< two unsigned numbers a byte, the first one low; scale * (u - 8), or with minimums
             ///< scale * u + minimum; a row has (n + 1) / 2 bytes
  };
  Kind kind = Kind::kFloat;
  FloatFormat format = FloatFormat::kF32;  ///< of the elements, or of scales and minimums
  const void* data = nullptr;
  const void* scales = nullptr;    ///< [vocab, groups]
  const void* minimums = nullptr;  ///< [vocab, groups]; null: none
  int32_t group_size = 0;          ///< a multiple of 4; the last group of a row may be shorter
  int64_t n = 0;
};

/// out[t] = table[ids[t]] * multiplier, [tokens, n] float32; each product and sum rounded, as the
/// CPU's embed_row. ids: [tokens], each a row of the table, or -1 - i for chosen_ids[i], what an
/// earlier step chose (row 0 where that is negative). `chosen_ids` may be null where no id is
/// negative.
Status embed_rows(const EmbeddingTable& table, const int32_t* ids, const int32_t* chosen_ids,
                  int32_t tokens, float multiplier, float* out, Stream stream);

}  // namespace vitrine::kernels::cuda
