// SPDX-License-Identifier: Apache-2.0
// What a layer that only drafts reads in place of a layer below it.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "ops/graph.h"

namespace vitrine::ops {

/// token ids, rows that the step is given [hidden] -> joined [2 * hidden]: a token's embedding and,
/// behind it, what a model computed at the token before, each normed.
struct DraftInputParameters final : OpParametersOf<DraftInputParameters> {
  static constexpr std::string_view kKind = "draft_input";
  std::string table;                    // [vocabulary, hidden]
  std::string token_norm, stream_norm;  // [hidden]
  double eps = 0;                       // of both

  void append_weights(WeightNames& names) const override {
    names.add_tables("embedding", {table});
    names.add_vectors("norm", {token_norm, stream_norm});
  }
  void rename_weights(const Rename& rename) {
    for (std::string* name : {&table, &token_norm, &stream_norm}) rename(*name);
  }
  bool takes_rows() const override { return true; }
};

inline constexpr const char* kDraftInput = "draft_input";

/// Returns whether a step of the graph begins with rows that it is given.
inline bool takes_rows(const Graph& graph) { return graph.nodes.front().parameters->takes_rows(); }

}  // namespace vitrine::ops
