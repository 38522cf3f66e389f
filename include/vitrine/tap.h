// SPDX-License-Identifier: Apache-2.0
// The room `core`: taps, by which a host reads what goes through a model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "vitrine/core.h"

namespace vitrine {

/// A place in a model: what goes into an op of a layer, or comes out of it. For calibration,
/// drafters that read hidden states, and whoever looks inside; nothing of it is recorded. A step of
/// a model without taps is what it was.
///
///     Tap{.layer = 3, .op = "experts", .value = "normed", .squares = true}
///
/// names what the gates and ups of layer 3's experts are multiplied with.
struct Tap {
  int layer = 0;   ///< -1: outside the layers
  std::string op;  ///< PlanEntry::op: "qkv", "attention", "project", "router", "experts", …
  /// What the op reads or makes, by its name in the graph: "residual", "normed", "query", "key" and
  /// "value" (as they were projected), "attended", "expert_slots" (an expert's output before its
  /// weight), "expert_hidden" and "dense_hidden" (what down is multiplied with), "shared_expert",
  /// "head_input".
  std::string value;
  /// The side of the op at which a tap stands.
  enum class Side : uint8_t { kInput, kOutput };
  Side side = Side::kInput;  ///< before the op or behind it; "…_hidden" stands behind
  bool maximum = false;      ///< keeps the largest magnitude of each column
  bool squares = false;      ///< keeps the sum of squares of each column
  /// Keeps the sum of x xᵀ, which takes 4 * width² bytes, for each expert where `by_expert`.
  bool products = false;
  /// Keeps the sums of each expert by themselves, over the tokens that are routed to it. For
  /// "experts" alone.
  bool by_expert = false;
};

/// What a tap sees of a step. Spans are valid during the call.
struct TapRows {
  size_t tap = 0;               ///< its number in EngineOptions::taps
  std::span<const float> rows;  ///< [tokens * rows_per_token, width], in the order of the step
  int64_t width = 0;            ///< of a row
  /// Above 1 a token's rows are those of its experts, in slot order.
  int32_t rows_per_token = 1;
  std::span<const int32_t> token_ids;  ///< [tokens]
  std::span<const int32_t> positions;  ///< [tokens]
  std::span<const int32_t> experts;    ///< [tokens * top_k] of taps at "experts", in slot order
  std::span<const float> weights;      ///< [tokens * top_k] of these experts' outputs
};

/// Is shown the rows of taps while a step runs.
class VITRINE_API TapReader {
 public:
  virtual ~TapReader() = default;
  /// Called on the step's thread, tap by tap in the order of the graph. What it throws, the step
  /// throws, and no sequence has changed then; sums may have.
  virtual void read(const TapRows& rows) = 0;
};

/// What a tap has added up. Each sum takes tokens one by one in the order in which steps had them:
/// neither threads nor how a sequence was cut into steps change a bit. Spans are valid, and their
/// contents stay, until the next step.
struct TapSums {
  int64_t count = 0;                ///< rows that were added
  std::span<const float> maximum;   ///< [width] where it was asked for
  std::span<const double> squares;  ///< [width] where they were asked for
  std::span<const float> products;  ///< [width, width] where they were asked for
};

}  // namespace vitrine
