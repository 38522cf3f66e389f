// SPDX-License-Identifier: Apache-2.0
// Keys in the order of the schema (JsonKeyOrder::kSchema).
#include <algorithm>
#include <set>

#include "json_machine.h"

namespace vitrine::constrain {

/// The keys of `properties`, and of constants, under all schemas that hold at one place, each where
/// it appears first: a schema's own, then those of $ref, enum and const, allOf, anyOf, oneOf, if,
/// then, else, dependentSchemas; several schemas as they stand in the document.
std::vector<std::string> JsonGrammar::keys_in_order(ValueId id) {
  std::vector<SchemaId> open;
  for (Literal literal : values_[id].literals) open.push_back(literal / 2);
  std::stable_sort(open.begin(), open.end(), [&](SchemaId x, SchemaId y) {
    return schemas_->position(x) > schemas_->position(y);
  });
  std::vector<std::string> out;
  std::set<SchemaId> seen;
  std::set<std::string_view> known;
  while (!open.empty()) {
    const SchemaId at = open.back();
    open.pop_back();
    if (at == kNoSchema || !seen.insert(at).second) continue;
    const Schema& schema = (*schemas_)[at];
    if (schema.members) {
      for (const std::string& key : schema.members->keys) {
        if (known.insert(key).second) out.push_back(key);
      }
    }
    std::vector<SchemaId> inner = {schema.reference, schema.dynamic_reference};
    for (const auto* list : {&schema.all_of, &schema.any_of, &schema.one_of}) {
      inner.insert(inner.end(), list->begin(), list->end());
    }
    for (SchemaId one : {schema.condition, schema.then_schema, schema.else_schema}) {
      inner.push_back(one);
    }
    for (const auto& dependent : schema.dependent_schemas) inner.push_back(dependent.second);
    open.insert(open.end(), inner.rbegin(), inner.rend());
  }
  return out;
}

/// Names them in each shape: keys with a rank are not among the others.
void JsonGrammar::name_keys(const std::vector<std::string>& keys, Objects& list) {
  if (keys.empty()) return;
  ObjectShape names;
  for (const std::string& key : keys) names.named.push_back({&*names_.insert(key).first});
  std::sort(names.named.begin(), names.named.end(),
            [](const auto& x, const auto& y) { return *x.name < *y.name; });
  for (ObjectShape& shape : list) {
    ObjectShape merged;
    merge(shape, names, merged);
    shape = std::move(merged);
  }
}

void JsonGrammar::rank_keys(const std::vector<std::string>& keys, ObjectShape& shape) {
  KeyOrder& order = shape.order.emplace();
  const auto num_ranked = static_cast<uint32_t>(keys.size());
  order.ranks.assign(shape.named.size(), num_ranked);
  for (uint32_t rank = 0; rank < num_ranked; ++rank) {
    const auto at = std::lower_bound(
        shape.named.begin(), shape.named.end(), keys[rank],
        [](const ObjectShape::Named& named, const std::string& key) { return *named.name < key; });
    order.ranks[static_cast<size_t>(at - shape.named.begin())] = rank;
  }
  order.sequence.resize(shape.named.size());
  for (uint32_t i = 0; i < order.sequence.size(); ++i) order.sequence[i] = i;
  std::stable_sort(order.sequence.begin(), order.sequence.end(),
                   [&](uint32_t x, uint32_t y) { return order.ranks[x] < order.ranks[y]; });
  order.required_below.assign(num_ranked + 1, 0);
}

void JsonGrammar::seal_order(ObjectShape& shape) {
  KeyOrder& order = *shape.order;
  const uint32_t num_ranked = order.num_ranked();
  order.live_from.assign(num_ranked + 1, 0);
  std::vector<uint32_t> required(num_ranked + 1, 0);
  for (size_t i = 0; i < shape.named.size(); ++i) {
    if (order.ranks[i] == num_ranked || !(shape.allowed[i / 64] >> (i % 64) & 1)) continue;
    order.live_from[order.ranks[i]] = 1;
    required[order.ranks[i]] = shape.named[i].required ? 1 : 0;
  }
  for (uint32_t rank = num_ranked; rank-- > 0;) order.live_from[rank] += order.live_from[rank + 1];
  for (uint32_t rank = 0; rank < num_ranked; ++rank) {
    order.required_below[rank + 1] = order.required_below[rank] + required[rank];
  }
  order.num_rest = shape.rest_keys == kEmptyNode ? 0
                   : pool_.is_infinite(shape.rest_keys)
                       ? kUnbounded
                       : pool_.count_strings(shape.rest_keys, kUnbounded);
}

/// A key of this rank may follow: it is behind those that the object has, no key that must come is
/// passed over, and enough are left.
bool JsonMachine::rank_fits(const Frame& frame, uint32_t rank) const {
  const ObjectShape& shape = grammar_.object(frame.shape);
  const KeyOrder& order = *shape.order;
  if (rank < frame.rank || order.required_below[rank] != order.required_below[frame.rank]) {
    return false;
  }
  if (frame.count + 1 >= shape.min || order.num_rest == kUnbounded) return true;
  const uint32_t num_ranked = order.num_ranked();
  uint64_t left = rank < num_ranked ? 1 + order.live_from[rank + 1] : 0;
  for (size_t i = 0; i < shape.named.size(); ++i) {
    const uint64_t bit = uint64_t{1} << (i % 64);
    const bool is_free = (shape.allowed[i / 64] & bit) && !(frame.seen[i / 64] & bit);
    left += order.ranks[i] == num_ranked && is_free ? 1 : 0;
  }
  left += order.num_rest;
  for (const SeenLink* link = frame.others; link; link = link->before) --left;
  return frame.count + left >= shape.min;
}

/// The object has this named key now, or one that is not named.
void JsonMachine::advance_rank(Frame& frame, bool is_named, size_t index) const {
  const ObjectShape& shape = grammar_.object(frame.shape);
  if (!shape.order) return;
  const uint32_t num_ranked = shape.order->num_ranked();
  const uint32_t rank = is_named ? shape.order->ranks[index] : num_ranked;
  frame.rank = rank < num_ranked ? rank + 1 : num_ranked;
}

}  // namespace vitrine::constrain
