// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "ops/adapters.h"

namespace vitrine::ops {

std::vector<AdapterTarget> adapter_targets(const Graph& graph) {
  const auto width = [&](ValueId id) { return graph.values[static_cast<size_t>(id)].width; };
  std::vector<AdapterTarget> targets;
  for (const OpNode& node : graph.nodes) {
    if (node.type == "qkv") {
      constexpr std::array<const char*, 3> kRoles = {"q", "k", "v"};
      for (size_t i = 0; i < kRoles.size(); ++i) {
        targets.push_back({node.weight(kRoles[i]), width(node.outputs[i]), width(node.inputs[0])});
      }
    } else if (node.type == "project") {
      targets.push_back({node.weight("weight"), width(node.outputs[0]), width(node.inputs[0])});
    } else if (node.type == "dense_ffn") {
      const int64_t in = width(node.inputs[0]), hidden = node.integer("intermediate");
      targets.push_back({node.weight("gate"), hidden, in});
      targets.push_back({node.weight("up"), hidden, in});
      targets.push_back({node.weight("down"), width(node.outputs[0]), hidden});
    } else if (node.type == "experts") {
      const int64_t outer = width(node.inputs[0]), hidden = node.integer("intermediate");
      const int64_t experts = node.integer("experts");
      for (int64_t expert = 0; expert < experts; ++expert) {
        targets.push_back({expert_module(node, expert, "gate"), hidden, outer});
        targets.push_back({expert_module(node, expert, "up"), hidden, outer});
        targets.push_back({expert_module(node, expert, "down"), outer, hidden});
      }
    } else if (node.type == "router") {
      targets.push_back({node.weight("weight"), node.integer("experts"), width(node.inputs[0])});
    }
  }
  return targets;
}

}  // namespace vitrine::ops
