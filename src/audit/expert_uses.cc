// SPDX-License-Identifier: Apache-2.0
#include "expert_uses.h"

#include <algorithm>

namespace vitrine::audit {

UseCounter::UseCounter(const std::vector<AuditLayout::Layer>& layers, int32_t least)
    : least_(static_cast<uint64_t>(std::max(least, 1))) {
  for (const AuditLayout::Layer& layer : layers) {
    due_.by_layer.emplace_back(static_cast<size_t>(layer.num_experts), 0);
  }
  held_ = current_ = due_;
}

void UseCounter::add(const TokenRecord& record) {
  for (size_t i = 0; i < record.layers.size(); ++i) {
    for (const RouteRecord& route : record.layers[i].routes) {
      ++current_.by_layer[i][static_cast<size_t>(route.expert)];
    }
  }
  if (++current_.tokens < least_) return;
  move(held_, due_);
  move(current_, held_);
}

void UseCounter::finish(bool even_few) {
  move(current_, held_);
  const bool is_enough = held_.tokens >= least_;  // a lot was held back, unless there never was one
  if (is_enough || even_few) move(held_, due_);
}

void UseCounter::move(ExpertUses& from, ExpertUses& to) {
  to.tokens += from.tokens;
  for (size_t i = 0; i < to.by_layer.size(); ++i) {
    for (size_t j = 0; j < to.by_layer[i].size(); ++j) to.by_layer[i][j] += from.by_layer[i][j];
  }
  clear(from);
}

void UseCounter::clear(ExpertUses& uses) {
  uses.tokens = 0;
  for (std::vector<uint64_t>& layer : uses.by_layer) std::fill(layer.begin(), layer.end(), 0);
}

}  // namespace vitrine::audit
