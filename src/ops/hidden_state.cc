// SPDX-License-Identifier: Apache-2.0
// hidden_state: copies the residual stream of every token into its record.
#include "ops/hidden_state.h"

#include <algorithm>

#include "ops/op.h"

namespace vitrine::ops {
namespace {

class PlannedHiddenState final : public PlannedOp {
 public:
  PlannedHiddenState(PlanContext& context, const OpNode& node)
      : stream_(context.scratch.value(node.inputs[0])),
        token_bytes_(static_cast<size_t>(context.audit.token_words) * 4) {
    for (const AuditLayout::HiddenState& state : context.audit.hidden_states) {
      if (state.layer == node.as<HiddenStateParameters>().entering)
        slot_ = static_cast<size_t>(state.values) * 4;
    }
    add_phase("copy", &PlannedHiddenState::pieces, &PlannedHiddenState::run);
  }

  int64_t pieces(const StepState& step) const {
    return step.audit ? divide_up(step.tokens, kTokensPerPiece) : 0;
  }
  void run(const StepState& step, int64_t piece) const {
    const int64_t end = std::min<int64_t>(step.tokens, (piece + 1) * kTokensPerPiece);
    for (int64_t token = piece * kTokensPerPiece; token < end; ++token) {
      std::byte* record = step.token_records + static_cast<size_t>(token) * token_bytes_;
      std::copy_n(stream_.row(token), stream_.width, reinterpret_cast<float*>(record + slot_));
    }
  }
  std::string kernel_name() const override { return "cpu.copy"; }

 private:
  static constexpr int64_t kTokensPerPiece = 32;
  RowBuffer& stream_;
  size_t token_bytes_;
  size_t slot_ = 0;
};

std::unique_ptr<PlannedOp> plan_hidden_state(PlanContext& context, const OpNode& node) {
  return std::make_unique<PlannedHiddenState>(context, node);
}

VITRINE_REGISTER_OP((OpDefinition{"hidden_state", plan_hidden_state}));

}  // namespace

void add_hidden_states(Graph& graph, std::span<const int> layers) {
  insert_nodes(
      graph,
      [&](const OpNode& node) {
        std::vector<OpNode> probes;
        if (!node.parameters->reads_stream_between_layers()) return probes;
        HiddenStateParameters probe;
        probe.entering = node.layer < 0 ? graph.num_layers : node.layer;
        if (std::ranges::find(layers, probe.entering) == layers.end()) return probes;
        probes.push_back({"hidden_state",
                          std::min(probe.entering, graph.num_layers - 1),
                          {node.inputs.at(0)},
                          {},
                          std::make_shared<const HiddenStateParameters>(probe)});
        return probes;
      },
      [](const OpNode&) { return std::vector<OpNode>(); });
}

std::vector<int> hidden_state_layers(const Graph& graph) {
  std::vector<int> layers;
  for (const OpNode& node : graph.nodes) {
    const auto* probe = node.find<HiddenStateParameters>();
    if (probe != nullptr) layers.push_back(probe->entering);
  }
  return layers;
}

int64_t hidden_size(const Graph& graph) { return graph.width(graph.stream()); }

}  // namespace vitrine::ops
