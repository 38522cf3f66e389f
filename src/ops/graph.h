// SPDX-License-Identifier: Apache-2.0
// A model as a list of ops over named values: what an architecture file builds, what a plan or the
// reference runs.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vitrine/core.h"

namespace vitrine::ops {

using ValueId = int;

/// An intermediate: one row of `width` float32 per token of the step (or per row of logits).
struct Value {
  std::string name;
  int64_t width = 0;
  bool per_row = false;  // one row per requested row of logits, not per token
};

/// One op. Weights are named by role; a matrix by its module ("model.layers.0.mlp.gate"), since the
/// checkpoint decides whether it is stored as `.weight` or packed; a vector by its tensor.
struct OpNode {
  std::string type;
  int layer = -1;  // -1: outside the layers
  std::vector<ValueId> inputs = {};
  std::vector<ValueId> outputs = {};
  std::map<std::string, std::string> weights = {};
  std::map<std::string, double> attributes = {};

  double attribute(std::string_view name) const;
  double attribute(std::string_view name, double fallback) const;
  int64_t integer(std::string_view name) const { return static_cast<int64_t>(attribute(name)); }
  bool flag(std::string_view name) const { return attribute(name, 0.0) != 0.0; }
  /// Empty where the op has no weight of that role.
  const std::string& weight(std::string_view role) const;
};

struct Graph {
  std::vector<Value> values;
  std::vector<OpNode> nodes;
  int num_layers = 0;
  int64_t vocab_size = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;

  ValueId add_value(std::string name, int64_t width, bool per_row = false) {
    values.push_back({std::move(name), width, per_row});
    return static_cast<ValueId>(values.size()) - 1;
  }
  OpNode& add(OpNode node) { return nodes.emplace_back(std::move(node)); }
};

}  // namespace vitrine::ops
