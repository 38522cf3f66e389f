// SPDX-License-Identifier: Apache-2.0
// hidden_state: copies the residual stream of every token into its record.
#include "ops/hidden_state.h"

#include <algorithm>

#include "ops/op.h"

namespace vitrine::ops {
namespace {

constexpr const char* kProbe = "hidden_state";

class PlannedHiddenState final : public PlannedOp {
 public:
  PlannedHiddenState(PlanContext& context, const OpNode& node)
      : stream_(context.value(node.inputs[0])),
        token_bytes_(static_cast<size_t>(context.audit.token_words) * 4) {
    for (const AuditLayout::HiddenState& state : context.audit.hidden_states) {
      if (state.layer == node.integer("entering")) slot_ = static_cast<size_t>(state.values) * 4;
    }
  }

  int64_t pieces(const StepState& step, int) const override {
    return step.audit ? divide_up(step.tokens, kTokensPerPiece) : 0;
  }
  void run(const StepState& step, int, int64_t piece) override {
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

VITRINE_REGISTER_OP((OpDefinition{kProbe, plan_hidden_state}));

}  // namespace

void add_hidden_states(Graph& graph, std::span<const int> layers) {
  Graph probed = graph;
  probed.nodes.clear();
  for (const OpNode& node : graph.nodes) {
    // Each layer begins with the norm of what enters it; the final norm belongs to no layer.
    const bool is_entry = node.type == "rms_norm" && (node.flag("audit") || node.layer < 0);
    const int entering = node.layer < 0 ? graph.num_layers : node.layer;
    if (is_entry && std::ranges::find(layers, entering) != layers.end()) {
      probed.nodes.push_back({.type = kProbe,
                              .layer = std::min(entering, graph.num_layers - 1),
                              .inputs = {node.inputs.at(0)},
                              .attributes = {{"entering", static_cast<double>(entering)}}});
    }
    probed.nodes.push_back(node);
  }
  graph = std::move(probed);
}

std::vector<int> hidden_state_layers(const Graph& graph) {
  std::vector<int> layers;
  for (const OpNode& node : graph.nodes) {
    if (node.type == kProbe) layers.push_back(static_cast<int>(node.integer("entering")));
  }
  return layers;
}

int64_t hidden_size(const Graph& graph) {
  return graph.values[static_cast<size_t>(graph.nodes.at(0).outputs.at(0))].width;
}

}  // namespace vitrine::ops
