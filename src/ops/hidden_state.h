// SPDX-License-Identifier: Apache-2.0
// Hidden states: the residual stream between layers, kept for the recorder.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ops/graph.h"

namespace vitrine::ops {

/// Copies the residual stream as it enters a layer into the record.
struct HiddenStateParameters final : OpParametersOf<HiddenStateParameters> {
  static constexpr std::string_view kKind = "hidden_state";
  int entering = 0;  // the number of layers: as it leaves the last one

  std::vector<RecordedWords> recorded(const AuditLayout& layout, const OpNode&) const override {
    for (const AuditLayout::HiddenState& state : layout.hidden_states) {
      if (state.layer == entering) return {{state.values, layout.hidden_size}};
    }
    return {};
  }
};

/// Puts a probe where the stream enters each of `layers` (the number of layers: where it leaves the
/// last one, before the final norm). Ascending, none twice. The graph computes what it did before.
void add_hidden_states(Graph& graph, std::span<const int> layers);
/// The layers that a graph has probes for, ascending.
std::vector<int> hidden_state_layers(const Graph& graph);
/// Width of the residual stream.
int64_t hidden_size(const Graph& graph);

}  // namespace vitrine::ops
