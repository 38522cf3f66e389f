// SPDX-License-Identifier: Apache-2.0
// Direct logit attribution (docs/attribution.md): what parts of the model added, kept for the rows
// of logits, and after the head each one's dot with the direction of the chosen token and of the
// runner-up.
#pragma once

#include "kernels/cuda/embed/embed.h"
#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

/// Columns that are copied: to + r * to_stride, from row index[r] (null: r) of `from`.
struct CopiedRows {
  const float* from = nullptr;
  int64_t from_stride = 0;
  int64_t width = 0;
  float* to = nullptr;
  int64_t to_stride = 0;
};

inline constexpr int kMaxCopies = 4;
inline constexpr int32_t kMaxAttributionVectors = 8192;

/// One kernel for up to four copies of the same rows.
struct RowCopies {
  int32_t count = 0;
  CopiedRows copies[kMaxCopies] = {};
  const int32_t* index = nullptr;  ///< [rows]
};
Status copy_rows(const RowCopies& copies, int32_t rows, Stream stream);

/// One part of the residual stream, of the kept vectors from `first` on: the stream behind an op
/// (count 0: its term is what it grew by), or outputs of experts before their weights.
struct AttributionPart {
  int32_t first = 0;
  int32_t count = 0;  ///< of a block of experts
  float multiplier = 1;
  /// How the last one counts, where it is a shared expert's.
  enum class Shared : uint8_t {
    kNone,   ///< it is a routed one's: by the weight that is kept
    kGated,  ///< by the sigmoid of what is kept
    kWhole,  ///< by 1; no weight is kept
  };
  Shared shared = Shared::kNone;
};

struct Attribution {
  int64_t hidden = 0;
  int32_t vectors = 0;
  const float* kept = nullptr;          ///< [rows, vectors, hidden]
  const float* kept_weights = nullptr;  ///< [rows, vectors]: of experts
  const AttributionPart* parts = nullptr;
  int32_t num_parts = 0;
  int32_t num_terms = 0;
  // The direction: unembedding row * norm; its dots * multiplier / sqrt(mean square + eps).
  EmbeddingTable head = {};
  const float* norm = nullptr;
  float eps = 0, multiplier = 1;
  const float* residual = nullptr;      ///< [tokens, hidden]
  const int32_t* row_tokens = nullptr;  ///< [rows]
  /// [rows] which choice a row is explained by: its own, or the one of a joint that it is part of.
  const int32_t* row_choices = nullptr;
  const int32_t* chosen_ids = nullptr;  ///< [choices]
  const int32_t* best_ids = nullptr;    ///< [choices, best_stride] the two best
  int64_t best_stride = 0;
  /// [rows, 2] what the host chose and its runner-up; -1: what the device found.
  const int32_t* host_choices = nullptr;
  // Scratch.
  int32_t* ids = nullptr;      ///< [rows, 2]
  float* scales = nullptr;     ///< [rows]
  float* direction = nullptr;  ///< [rows, 2, hidden]
  float* dots = nullptr;       ///< [rows, 2, vectors]
  /// Row r's record begins at words + r * stride: terms are written from `terms` on, the chosen
  /// token's, then the runner-up's.
  int32_t* words = nullptr;
  int64_t stride = 0;
  int32_t terms = 0;
};

/// Four kernels. Terms have the CPU's bits where the logits have.
Status attribute_rows(const Attribution& attribution, int32_t rows, Stream stream);

}  // namespace vitrine::kernels::cuda
