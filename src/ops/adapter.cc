// SPDX-License-Identifier: Apache-2.0
#include "ops/adapters.h"

namespace vitrine::ops {

std::vector<OpMatrix> adapter_targets(const Graph& graph) {
  std::vector<OpMatrix> targets;
  for (const OpNode& node : graph.nodes) node.parameters->append_matrices(graph, node, targets);
  return targets;
}

}  // namespace vitrine::ops
