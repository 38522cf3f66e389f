// SPDX-License-Identifier: Apache-2.0
#include "engine/run/forced_routes.h"

#include <cmath>
#include <string>

namespace vitrine::engine {

namespace {

[[noreturn]] void refuse(const StepInput& input, size_t index, const std::string& what) {
  throw Error(ErrorKind::kInvalidArgument, "forced route " + std::to_string(index) +
                                               " of sequence " + std::to_string(input.sequence) +
                                               " " + what);
}

std::string range(int64_t end) { return "; expected 0 to " + std::to_string(end - 1); }

void check_route(const AuditLayout& layout, const StepInput& input, size_t index) {
  const ForcedRoute& route = input.routes[index];
  const auto tokens = static_cast<int64_t>(input.tokens.size());
  const auto layers = static_cast<int64_t>(layout.layers.size());
  if (route.token < 0 || route.token >= tokens) {
    refuse(input, index, "names token " + std::to_string(route.token) + range(tokens));
  }
  if (route.layer < 0 || route.layer >= layers) {
    refuse(input, index, "names layer " + std::to_string(route.layer) + range(layers));
  }
  const AuditLayout::Layer& layer = layout.layers[static_cast<size_t>(route.layer)];
  if (layer.top_k == 0) {
    refuse(input, index,
           "names layer " + std::to_string(route.layer) +
               ", which is dense; expected a layer with experts");
  }
  if (route.expert < 0 || route.expert >= layer.num_experts) {
    refuse(input, index, "names expert " + std::to_string(route.expert) + range(layer.num_experts));
  }
  const bool is_weight = std::isfinite(route.weight) && route.weight >= 0;
  if (!is_weight && route.weight != ForcedRoute::kRouterWeight) {
    refuse(input, index,
           "has weight " + std::to_string(route.weight) +
               "; expected 0 or more, or ForcedRoute::kRouterWeight");
  }
}

}  // namespace

void check_forced_routes(const AuditLayout& layout, const StepInput& input) {
  const std::span<const ForcedRoute> routes = input.routes;
  for (size_t index = 0; index < routes.size(); ++index) check_route(layout, input, index);
  for (size_t first = 0; first < routes.size();) {
    const int32_t token = routes[first].token, layer = routes[first].layer;
    if (first > 0) {
      const ForcedRoute& before = routes[first - 1];
      if (token < before.token || (token == before.token && layer <= before.layer)) {
        refuse(input, first,
               "stands out of order (token " + std::to_string(token) + ", layer " +
                   std::to_string(layer) + "); expected them by token, then layer");
      }
    }
    size_t end = first + 1;
    for (; end < routes.size() && routes[end].token == token && routes[end].layer == layer; ++end) {
      for (size_t other = first; other < end; ++other) {
        if (routes[other].expert != routes[end].expert) continue;
        refuse(input, end,
               "names expert " + std::to_string(routes[end].expert) + " of layer " +
                   std::to_string(layer) + " twice for one token; expected each expert once");
      }
    }
    const auto top_k = static_cast<size_t>(layout.layers[static_cast<size_t>(layer)].top_k);
    if (end - first != top_k) {
      refuse(input, first,
             "begins " + std::to_string(end - first) + " routes of token " + std::to_string(token) +
                 " in layer " + std::to_string(layer) + "; expected all " + std::to_string(top_k));
    }
    first = end;
  }
}

void append_by_token(const StepInput& input, std::vector<std::span<const ForcedRoute>>& routes) {
  size_t next = 0;
  for (size_t token = 0; token < input.tokens.size(); ++token) {
    const size_t first = next;
    while (next < input.routes.size() && input.routes[next].token == static_cast<int32_t>(token)) {
      ++next;
    }
    routes.push_back(input.routes.subspan(first, next - first));
  }
}

}  // namespace vitrine::engine
