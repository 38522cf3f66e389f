// SPDX-License-Identifier: Apache-2.0
// Where a graph is tapped, and what the taps add up.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ops/graph.h"
#include "vitrine/tap.h"

namespace vitrine::ops {

/// A value of the graph, or an op's own rows by name, behind or before that op.
struct TapParameters final : OpParametersOf<TapParameters> {
  static constexpr std::string_view kKind = "tap";
  size_t tap = 0;
  std::string rows;       // the name
  ValueId value = -1;     // -1: an op's own rows
  int64_t width = 0;      // of a row
  int64_t per_token = 1;  // rows
  int64_t experts = 0;    // 0: the op has none
  int64_t top_k = 0;
};

/// Puts an op "tap" beside those that are named. The graph computes what it computed before. Throws
/// kInvalidArgument for a place that there is not, and names those that there are.
void add_taps(Graph& graph, std::span<const Tap> taps);

/// The rows of one tap in a step, on the host.
struct TapPass {
  const float* rows = nullptr;  // [tokens * per_token, width]
  int64_t tokens = 0;
  const int32_t* token_ids = nullptr;  // [tokens]
  const int32_t* positions = nullptr;  // [tokens]
  const int32_t* experts = nullptr;    // [tokens * top_k]
  const float* weights = nullptr;      // [tokens * top_k] of these experts
};

/// The sums of an engine's taps, and who reads their rows.
class TapBook {
 public:
  /// Throws kOutOfMemory for more sums than there is memory.
  TapBook(const Graph& graph, std::span<const Tap> taps);

  TapReader* reader = nullptr;
  bool is_paused = false;  // tokens come again that it has seen

  /// By one thread, before the tiles of the pass.
  void begin(const TapParameters& tap, const TapPass& pass);
  /// Pieces of work that add the pass's rows, each to its own part of the sums.
  int64_t num_tiles(const TapParameters& tap) const;
  void add(const TapParameters& tap, const TapPass& pass, int64_t tile);

  /// Throws kInvalidArgument for a tap or an expert that there is not.
  TapSums sums(size_t tap, int expert) const;
  void clear();

 private:
  struct Sums {
    bool has_maximum = false, has_squares = false, has_products = false;
    int64_t width = 0;
    int64_t groups = 1;           // experts
    std::vector<int64_t> counts;  // [groups]
    std::vector<float> maximum;   // [groups, width]
    std::vector<double> squares;  // [groups, width]
    std::vector<float> products;  // [groups, width, width]
  };
  static int64_t column_tiles(const Sums& sums);
  template <typename Visit>
  static void for_each_row(const TapParameters& tap, const Sums& sums, const TapPass& pass,
                           const Visit& visit);

  std::vector<Sums> sums_;  // by tap
};

}  // namespace vitrine::ops
