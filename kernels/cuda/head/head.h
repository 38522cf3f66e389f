// SPDX-License-Identifier: Apache-2.0
// What the output head reports of its logits, without the host: statistics of blocks of 1,024
// entries, merged for each row, the best token, and the record (docs/numerics.md, "Output head").
#pragma once

#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

inline constexpr int kHeadBlockEntries = 1024;
inline constexpr int kBestEntries = 10;

/// Statistics of one block of a row, with the bits of the CPU kernels' HeadBlockStats.
struct HeadBlock {
  uint64_t hash;
  float max, sum_exp, sum_exp_logit;
  int32_t count;  // valid entries of the lists
  float top_logits[kBestEntries];
  int32_t top_ids[kBestEntries];
};

constexpr int64_t head_blocks(int64_t vocab) {
  return (vocab + kHeadBlockEntries - 1) / kHeadBlockEntries;
}

/// Word offsets of a row's record (AuditLayout), for what is not negative.
struct HeadRecord {
  int32_t* words =
      nullptr;  ///< row r's record begins at words + r * stride; null: nothing recorded
  int64_t stride = 0;
  int32_t chosen_logit = 0, log_sum_exp = 0, entropy = 0, top_ids = 0, top_logits = 0,
          logits_digest = 0;
};

struct Head {
  int64_t vocab = 0;            ///< 1 to 2^24
  float multiplier = 1;         ///< logits are multiplied by it first, in place
  float* logits = nullptr;      ///< [rows, vocab] float32
  HeadBlock* blocks = nullptr;  ///< [rows, head_blocks(vocab)] scratch
  /// [rows] id whose logit is recorded and which is chosen; -1: the best. Null: the best
  /// everywhere.
  const int32_t* targets = nullptr;
  int32_t* chosen_ids = nullptr;  ///< [rows]; -1 where every logit is NaN
  HeadRecord record = {};
};

/// Two kernels. A record's best ids past the vocabulary are -1, their logits 0. The blocks, ids,
/// lists and the digest have the CPU's bits; log_sum_exp and entropy are merged in double by
/// another order (32 runs of consecutive blocks, then a tree), so a last bit may differ.
Status head_epilogue(const Head& head, int32_t rows, Stream stream);

}  // namespace vitrine::kernels::cuda
