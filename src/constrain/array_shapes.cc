// SPDX-License-Identifier: Apache-2.0
// Arrays: a schema's conditions on them as alternatives, and conjunctions of those.
#include <algorithm>

#include "json_grammar.h"
#include "schema_fields.h"
#include "shape_algebra.h"

namespace vitrine::constrain {

namespace {

constexpr uint32_t kMaxPrefix = 2000;

}  // namespace

bool JsonGrammar::is_plainly_dead(const ArrayShape& shape) {
  if (shape.min > shape.max) return true;
  const size_t known = std::min<size_t>(shape.min, shape.prefix.size());
  for (size_t i = 0; i < known; ++i) {
    if (is_plainly_dead(shape.prefix[i])) return true;
  }
  return shape.min > shape.prefix.size() && is_plainly_dead(shape.rest);
}

bool JsonGrammar::merge(const ArrayShape& x, const ArrayShape& y, ArrayShape& out) {
  out.min = std::max(x.min, y.min);
  out.max = std::min(x.max, y.max);
  out.unique = x.unique || y.unique;
  out.repeated = x.repeated || y.repeated;
  if (out.unique && out.repeated) return false;
  for (uint32_t i = 0; i < std::max(x.prefix.size(), y.prefix.size()); ++i) {
    out.prefix.push_back(conjunction(x.item(i), y.item(i)));
  }
  out.rest = conjunction(x.rest, y.rest);
  unite_evaluated(x, y, out);
  out.contains = x.contains;
  for (const auto& more : y.contains) {
    if (std::find(out.contains.begin(), out.contains.end(), more) == out.contains.end()) {
      out.contains.push_back(more);
    }
  }
  return !is_plainly_dead(out);
}

JsonGrammar::Arrays JsonGrammar::compute_arrays(SchemaId id, Tracking tracking) {
  const Schema& schema = (*schemas_)[id];
  const SchemaId rest = schema.unevaluated_items;
  if (rest == kNoSchema) return tracked_arrays(id, tracking);
  Arrays out;
  for (ArrayShape& shape : tracked_arrays(id, tracking_for(rest))) {
    ArrayShape merged;
    if (!merge(shape, unevaluated_items(schema, shape), merged)) continue;
    merged.evaluated = tracking == Tracking::kNone ? 0 : kUnbounded;
    merged.evaluated_by.clear();
    if (std::find(out.begin(), out.end(), merged) == out.end()) out.push_back(std::move(merged));
  }
  return out;
}

/// All but unevaluatedItems.
JsonGrammar::Arrays JsonGrammar::tracked_arrays(SchemaId id, Tracking tracking) {
  const Schema& schema = (*schemas_)[id];
  if (!(schema.types & kArrayBit)) return {};
  ShapeAlgebra<ArrayShape> algebra(*this, id, "arrays", &JsonGrammar::arrays_of, tracking);
  ArrayShape direct;
  if (tracking != Tracking::kNone) set_evaluated(schema, direct);
  for (SchemaId item : schema.prefix) direct.prefix.push_back(value_of(item));
  if (schema.items != kNoSchema) direct.rest = value_of(schema.items);
  direct.min = schema.min_items;
  direct.max = schema.max_items;
  direct.unique = schema.unique;
  if (schema.contains != kNoSchema &&
      (schema.min_contains > 0 || schema.max_contains != kUnbounded)) {
    if (schema.min_contains > schema.max_contains) return {};
    direct.contains.push_back({value_of(schema.contains), value_of(schema.contains, true),
                               schema.min_contains, schema.max_contains, 0});
  }
  if (is_plainly_dead(direct)) return {};
  return algebra.apply(schema, {std::move(direct)});
}

void JsonGrammar::negate_direct_array(const Schema& schema, Arrays& out) {
  for (size_t i = 0; i < schema.prefix.size(); ++i) {
    ArrayShape shape;
    shape.prefix.assign(i + 1, kAnyValue);
    shape.prefix[i] = value_of(schema.prefix[i], true);
    shape.min = static_cast<uint32_t>(i + 1);
    out.push_back(std::move(shape));
  }
  const auto some_item = [&](ValueId match, ValueId mismatch, uint32_t low, uint32_t high,
                             size_t from) {
    ArrayShape shape;
    shape.contains.push_back({match, mismatch, low, high, static_cast<uint32_t>(from)});
    out.push_back(std::move(shape));
  };
  if (schema.items != kNoSchema) {
    const ValueId wrong = value_of(schema.items, true);
    if (wrong != kNoValue)
      some_item(wrong, value_of(schema.items), 1, kUnbounded, schema.prefix.size());
  }
  ArrayShape counted;
  if (schema.min_items > 0) {
    counted.max = schema.min_items - 1;
    out.push_back(counted);
  }
  if (schema.max_items != kUnbounded) {
    counted.max = kUnbounded;
    counted.min = schema.max_items + 1;
    out.push_back(counted);
  }
  if (schema.unique) {
    ArrayShape equal;
    equal.repeated = true;
    equal.min = 2;
    out.push_back(std::move(equal));
  }
  if (schema.contains == kNoSchema) return;
  const ValueId match = value_of(schema.contains), mismatch = value_of(schema.contains, true);
  if (schema.min_contains == 1) {
    ArrayShape none;
    none.rest = mismatch;
    out.push_back(std::move(none));
  } else if (schema.min_contains > 1) {
    some_item(match, mismatch, 0, schema.min_contains - 1, 0);
  }
  if (schema.max_contains != kUnbounded) {
    some_item(match, mismatch, schema.max_contains + 1, kUnbounded, 0);
  }
}

JsonGrammar::Arrays JsonGrammar::compute_negated_arrays(SchemaId id) {
  const Schema& schema = (*schemas_)[id];
  if (!(schema.types & kArrayBit)) return {ArrayShape()};
  ShapeAlgebra<ArrayShape> algebra(*this, id, "arrays", &JsonGrammar::arrays_of);
  Arrays direct, out;
  negate_direct_array(schema, direct);
  for (ArrayShape& shape : direct) {
    if (!is_plainly_dead(shape)) algebra.add(out, std::move(shape));
  }
  algebra.apply_negated(schema, out);
  negate_unevaluated(id, out);
  return out;
}

/// Conditions on some item: met by one of the prefix, or by one behind it (and behind `from`),
/// where all items are alike.
void JsonGrammar::settle_contains(const ArrayShape& shape, ValueId id, Arrays& out) {
  Arrays open = {shape};
  while (!open.empty()) {
    ArrayShape next = std::move(open.back());
    open.pop_back();
    size_t at = 0;
    while (at < next.contains.size() && next.contains[at].from >= next.prefix.size()) ++at;
    if (at == next.contains.size()) {
      if (out.size() >= options_.max_alternatives) too_many(values_[id].literals[0] / 2, "arrays");
      // Beyond a longer `from`, the items in between are prefix.
      uint32_t from = static_cast<uint32_t>(next.prefix.size());
      for (const auto& contains : next.contains) from = std::max(from, contains.from);
      if (!next.contains.empty() && from > kMaxPrefix)
        too_many(values_[id].literals[0] / 2, "items");
      if (!next.contains.empty()) next.prefix.resize(from, next.rest);
      bool settled = true;
      for (const auto& contains : next.contains) settled = settled && contains.from >= from;
      if (!settled) {
        open.push_back(std::move(next));
        continue;
      }
      if (std::find(out.begin(), out.end(), next) == out.end()) out.push_back(std::move(next));
      continue;
    }
    const ArrayShape::Contains contains = next.contains[at];
    next.contains.erase(next.contains.begin() + static_cast<long>(at));
    // The first prefix item that counts: it matches, or it does not.
    const uint32_t index = contains.from;
    const auto with_item = [&](ValueId value, uint32_t low, uint32_t high, bool must_exist) {
      ArrayShape more = next;
      more.prefix[index] = conjunction(more.prefix[index], value);
      if (must_exist) more.min = std::max(more.min, index + 1);
      if (low > 0 || high != kUnbounded) {
        more.contains.push_back({contains.match, contains.mismatch, low, high, index + 1});
      }
      if (!is_plainly_dead(more)) open.push_back(std::move(more));
    };
    if (contains.max > 0) {
      with_item(contains.match, contains.min > 0 ? contains.min - 1 : 0,
                contains.max == kUnbounded ? kUnbounded : contains.max - 1, true);
    }
    // Without an upper bound it need not be told that it does not match.
    with_item(contains.max == kUnbounded ? kAnyValue : contains.mismatch, contains.min,
              contains.max, false);
    if (open.size() > options_.max_alternatives) too_many(values_[id].literals[0] / 2, "arrays");
  }
}

bool JsonGrammar::array_is_live(const ArrayShape& shape, ValueId id) {
  for (uint32_t i = 0; i < std::min<size_t>(shape.min, shape.prefix.size()); ++i) {
    if (!is_live(shape.prefix[i])) return false;
  }
  if (shape.min > shape.prefix.size() && !is_live(shape.rest)) return false;
  if (shape.contains.empty() && !shape.unique && !shape.repeated) return true;
  ArrayShape copy = shape;
  return seal_array(copy, id);
}

/// Cuts the array before the first item that cannot be. False where no array is valid.
bool JsonGrammar::seal_array(ArrayShape& shape, ValueId id) {
  const std::string& pointer =
      (*schemas_)[values_[id].literals.empty() ? 0 : values_[id].literals[0] / 2].pointer;
  for (uint32_t i = 0; i < shape.prefix.size(); ++i) {
    if (!is_live(shape.prefix[i])) shape.max = std::min(shape.max, i);
  }
  const auto size = static_cast<uint32_t>(shape.prefix.size());
  if (!is_live(shape.rest)) shape.max = std::min(shape.max, size);
  uint64_t wanted = 0;
  for (auto& contains : shape.contains) {
    const bool some = is_live(conjunction(shape.rest, contains.match));
    if (contains.min > 0 && !some) return false;
    if (contains.max != kUnbounded && !is_live(conjunction(shape.rest, contains.mismatch))) {
      shape.max = static_cast<uint32_t>(
          std::min<uint64_t>(shape.max, uint64_t{contains.from} + contains.max));
    }
    wanted += contains.min;
  }
  if (!shape.contains.empty() && wanted > 0) {
    shape.min = static_cast<uint32_t>(
        std::max<uint64_t>(shape.min, size + (shape.contains.size() == 1 ? wanted : 1)));
    if (shape.contains.size() > 1 && shape.max != kUnbounded && size + wanted > shape.max) {
      unsupported(pointer, "several conditions on some item together with maxItems");
    }
  }
  if (shape.contains.size() > 1) {
    for (const auto& contains : shape.contains) {
      if (contains.max != kUnbounded)
        unsupported(pointer, "maxContains beside another condition on items");
    }
  }
  if (shape.contains.size() > 4) unsupported(pointer, "more than four conditions on some item");
  if (shape.repeated && shape.min <= shape.max && shape.max != kUnbounded) {
    unsupported(pointer, "the negation of uniqueItems where the number of items is bounded");
  }
  if (shape.unique) {
    check_condition(shape, id);
    if (!items_are_enough(shape)) return false;
  }
  return shape.min <= shape.max;
}

void JsonGrammar::expand_arrays(ValueId id) {
  ShapeAlgebra<ArrayShape> algebra(*this,
                                   values_[id].literals.empty() ? 0 : values_[id].literals[0] / 2,
                                   "arrays", &JsonGrammar::arrays_of);
  Arrays list = {ArrayShape()};
  for (Literal literal : std::vector<Literal>(values_[id].literals)) {
    list = algebra.cross(list, arrays_of(literal));
  }
  Arrays settled;
  for (const ArrayShape& shape : list) settle_contains(shape, id, settled);
  for (ArrayShape& shape : settled) {
    arrays_.push_back(std::move(shape));
    values_[id].arrays.push_back(static_cast<ShapeId>(arrays_.size() - 1));
  }
}

}  // namespace vitrine::constrain
