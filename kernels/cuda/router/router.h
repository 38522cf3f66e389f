// SPDX-License-Identifier: Apache-2.0
// The router's choice of experts, and the tokens of each expert side by side, without the host.
#pragma once

#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

/// Rows of a tile at least.
inline constexpr int32_t kLeastTileRows = 8;

/// Routes (token, slot) by expert, each expert's in ascending order of the route's number token *
/// top_k + slot, padded to whole tiles, for a grouped matrix product that reads a tile's expert and
/// rows from here. Sizes: total = tokens * top_k; see most_tiles().
struct Grouping {
  int32_t num_experts = 0;  ///< 1 to 1,024
  int32_t top_k = 0;
  int32_t tile_rows = 0;         ///< rows of a tile, 1 to 256
  const int32_t* ids = nullptr;  ///< [tokens, top_k], each below num_experts
  int32_t* counts = nullptr;     ///< [num_experts] routes
  int32_t* offsets =
      nullptr;  ///< [num_experts + 1] first row of each expert, multiples of tile_rows
  int32_t* row_routes = nullptr;  ///< [most tiles * tile_rows] a row's route; -1: padding
  int32_t* slot_rows = nullptr;   ///< [total] a route's row
  int32_t* tile_experts =
      nullptr;                   ///< [most tiles] a tile's expert; -1: none, the product skips it
  int32_t* num_tiles = nullptr;  ///< [1]
};

/// Arrays on the device. ids, weights and probs of token t go to [t * stride + slot or expert];
/// each of the copies for the audit goes where its pointer says, t * record_stride words on, where
/// it is not null.
struct Router {
  int32_t num_experts = 0;  ///< 1 to 1,024
  int32_t top_k = 0;        ///< 1 to num_experts, at most 32
  bool normalize = false;   ///< weights divided by their sum, which is added in slot order
  bool softmax_after_topk =
      false;                      ///< softmax of the chosen logits alone (`normalize` is then idle)
  const float* logits = nullptr;  ///< [tokens, num_experts] float32
  int32_t* ids = nullptr;         ///< [tokens, top_k], descending probability, ties by lower id
  float* weights = nullptr;       ///< [tokens, top_k]
  float* probs = nullptr;         ///< [tokens, num_experts]; may be null
  /// Forced routes: the element [t * forced_stride + s] belongs to token t and slot s. It names the
  /// expert to take in place of the router's, for all slots of a token or for none of them (-1),
  /// and its weight (below 0: the router's). Null: no token has forced routes.
  const int32_t* forced_ids = nullptr;
  const float* forced_weights = nullptr;
  int64_t forced_stride = 0;
  int64_t record_stride = 0;
  int32_t* record_ids = nullptr;    ///< [top_k] of a token
  float* record_weights = nullptr;  ///< [top_k] of a token
  float* record_probs = nullptr;    ///< [num_experts] of a token
  /// [2 * top_k] of a token: the chosen ones' scores, then their selection keys. Of routers by
  /// scores alone.
  float* record_scores = nullptr;
  /// Where `row_routes` is not null and there is one token, its routes are grouped at once, as
  /// group_by_expert would (but for `counts` and `offsets`).
  Grouping grouping = {};
};

/// Has the bits of the CPU kernels' router_top_k (docs/numerics.md, "Router").
Status router_top_k(const Router& router, int32_t tokens, Stream stream);

/// How a router by scores chooses: by sigmoid, with a correction that counts for the choice alone,
/// among the groups whose two best experts are worth most together. Weights are scores; `probs`
/// and record_probs are, too. softmax_after_topk is idle.
struct RouterScores {
  const float* correction = nullptr;  ///< [num_experts] added for the choice; null: nothing
  int32_t groups = 1;                 ///< 1 to 64, a divisor of num_experts: consecutive experts
  int32_t chosen_groups = 1;          ///< those that experts are chosen from: all, no limit
  float sum_epsilon = 0;              ///< added to the sum by which `normalize` divides
  float scale = 1;                    ///< of the weights, at the end
};

/// Has the bits of the CPU (docs/numerics.md, "Router"), where corrections are numbers.
Status scored_router_top_k(const Router& router, const RouterScores& scores, int32_t tokens,
                           Stream stream);

constexpr int64_t most_tiles(int64_t tokens, int32_t top_k, int32_t num_experts,
                             int32_t tile_rows) {
  const int64_t total = tokens * top_k;
  return total / tile_rows + (num_experts < total ? num_experts : total);
}

Status group_by_expert(const Grouping& grouping, int32_t tokens, Stream stream);

}  // namespace vitrine::kernels::cuda
