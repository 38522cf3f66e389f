// SPDX-License-Identifier: Apache-2.0
// Arrays of which all items differ: what can be kept.
#include <algorithm>

#include "json_grammar.h"
#include "schema_fields.h"

namespace vitrine::constrain {

namespace {

constexpr uint64_t kManyScalars = uint64_t{1} << 20;  // more than an answer has
constexpr size_t kMaxNested = 200;

}  // namespace

bool JsonGrammar::has_live_container(ValueId id) {
  struct Visit {
    Visit(std::set<ValueId>& visits, ValueId id)
        : visits(visits), id(id), is_new(visits.insert(id).second) {}
    ~Visit() {
      if (is_new) visits.erase(id);
    }
    std::set<ValueId>& visits;
    ValueId id;
    bool is_new;
  } const visit(containers_in_progress_, id);
  if (!visit.is_new || containers_in_progress_.size() > kMaxNested) {
    unsupported(place(id), "uniqueItems over arrays whose items depend on how many there are");
  }
  expand(id);
  for (ShapeId shape : std::vector<ShapeId>(values_[id].objects)) {
    if (object_is_live(objects_[shape])) return true;
  }
  for (ShapeId shape : std::vector<ShapeId>(values_[id].arrays)) {
    if (array_is_live(arrays_[shape], id)) return true;
  }
  return false;
}

bool JsonGrammar::has_many_scalars(ValueId id) {
  const Scalars all = scalars_of(values_[id].literals);
  if (pool_.is_infinite(all.text) || all.number == pool_.number()) return true;
  return count_scalars(id, kManyScalars) == kManyScalars;
}

/// No number of items uses them up.
bool JsonGrammar::is_endless(ValueId id) { return has_live_container(id) || has_many_scalars(id); }

/// A condition on some item beside uniqueItems: items that count, and those that must not where
/// their number is bounded, are never used up, so each array that has room for them can be ended.
void JsonGrammar::check_condition(const ArrayShape& shape, ValueId id) {
  if (shape.contains.empty()) return;
  if (shape.contains.size() > 1) {
    unsupported(place(id), "uniqueItems with several conditions on some item");
  }
  const auto never_ends = [&](ValueId condition) {
    return is_endless(conjunction(shape.rest, condition)) &&
           std::ranges::none_of(shape.prefix, [&](ValueId item) {
             const ValueId value = conjunction(item, condition);
             return is_live(value) && !is_endless(value);
           });
  };
  const auto& contains = shape.contains[0];
  if ((contains.min == 0 || never_ends(contains.match)) &&
      (contains.max == kUnbounded || never_ends(contains.mismatch))) {
    return;
  }
  unsupported(place(id), "uniqueItems with a condition on some item that few values meet");
}

/// Whatever the items before it are, each that must come has a value left. Containers that are
/// compared have no end of values (check_items). False where some item has none; throws where that
/// depends on the others.
bool JsonGrammar::items_are_enough(const ArrayShape& shape) {
  const auto size = static_cast<uint32_t>(shape.prefix.size());
  if (size == 0) {
    return shape.min <= 1 || has_live_container(shape.rest) ||
           count_scalars(shape.rest, shape.min) >= shape.min;
  }
  for (uint32_t i = 1; i < std::min(shape.min, size + 1); ++i) {
    // Behind the prefix all are alike: the last one that must come wants the most.
    const uint32_t wanted = i < size ? i + 1 : shape.min;
    const ValueId item = shape.item(i);
    if (has_live_container(item) || count_scalars(item, wanted) >= wanted) continue;
    throw Error(ErrorKind::kUnsupported,
                "uniqueItems with few values for an item of which others may take one");
  }
  return true;
}

/// A container that can always go on differs from all before it: only its end must be looked at.
bool JsonGrammar::may_grow(const ObjectShape& shape) {
  return shape.max == kUnbounded && pool_.is_infinite(shape.rest_keys);
}
bool JsonGrammar::may_grow(const ArrayShape& shape) {
  return shape.max == kUnbounded && (!shape.unique || is_endless(shape.rest));
}

void JsonGrammar::check_items(const ArrayShape& shape, ValueId id) {
  if (!shape.unique || shape.max < 2) return;
  std::vector<ValueId> items = shape.prefix;
  if (shape.max > items.size()) items.push_back(shape.rest);
  for (const auto& contains : shape.contains) {
    items.push_back(conjunction(shape.rest, contains.match));
    if (contains.max != kUnbounded) items.push_back(conjunction(shape.rest, contains.mismatch));
  }
  for (ValueId item : items) {
    if (!is_live(item)) continue;
    seal(item);
    for (ShapeId object : values_[item].objects) {
      if (may_grow(objects_[object])) continue;
      unsupported(place(id), "uniqueItems where items may be objects that take no further keys");
    }
    for (ShapeId array : std::vector<ShapeId>(values_[item].arrays)) {
      if (may_grow(arrays_[array])) continue;
      unsupported(place(id), "uniqueItems where items may be arrays of a bounded length");
    }
  }
}

}  // namespace vitrine::constrain
