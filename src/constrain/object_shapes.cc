// SPDX-License-Identifier: Apache-2.0
// Objects: a schema's conditions on them as alternatives, and conjunctions of those.
#include <algorithm>
#include <bit>

#include "json_grammar.h"
#include "schema_fields.h"
#include "shape_algebra.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxCombinations = 256;
constexpr uint64_t kPlenty = 4096;

}  // namespace

bool ObjectShape::operator==(const ObjectShape& other) const {
  return min == other.min && max == other.max && evaluated == other.evaluated &&
         rules == other.rules && needs == other.needs &&
         std::equal(named.begin(), named.end(), other.named.begin(), other.named.end(),
                    [](const Named& x, const Named& y) {
                      return x.name == y.name && x.value == y.value && x.required == y.required;
                    });
}

ObjectShape JsonGrammar::direct_object(const Schema& schema) {
  ObjectShape out;
  out.min = schema.min_properties;
  out.max = schema.max_properties;
  std::vector<NodeId> known;
  for (const auto& [keys, id] : schema.patterns) {
    known.push_back(keys);
    if (const ValueId value = value_of(id); value != kAnyValue) out.rules.push_back({keys, value});
  }
  if (schema.additional != kNoSchema && schema.additional != kTrueSchema) {
    out.rules.push_back({pool_.text_complement(pool_.any_of(known)), value_of(schema.additional)});
  }
  NodeId names = pool_.any_text();
  if (schema.property_names != kNoSchema) {
    names = scalars(schema.property_names).text;
    const NodeId wrong = pool_.text_complement(names);
    if (wrong != kEmptyNode) out.rules.push_back({wrong, kNoValue});
  }
  for (const auto& [name, id] : schema.properties) {
    ValueId value = value_of(id);
    for (const auto& [keys, other] : schema.patterns) {
      if (pool_.matches(keys, name)) value = conjunction(value, value_of(other));
    }
    if (names != pool_.any_text() && !pool_.matches(names, name)) value = kNoValue;
    out.named.push_back({&*names_.insert(name).first, value, false});
  }
  for (const std::string& name : schema.required) {
    ObjectShape merged;
    merge(out, with_key(name, kAnyValue, true), merged);
    out = std::move(merged);
  }
  return out;
}

ObjectShape JsonGrammar::with_key(const std::string& name, ValueId value, bool required) {
  ObjectShape out;
  out.named.push_back({&*names_.insert(name).first, value, required});
  return out;
}

bool JsonGrammar::is_plainly_dead(const ObjectShape& shape) {
  uint64_t required = 0;
  for (const auto& named : shape.named) {
    if (!named.required) continue;
    ++required;
    if (is_plainly_dead(named.value)) return true;
  }
  return required > shape.max || shape.min > shape.max;
}

bool JsonGrammar::merge(const ObjectShape& x, const ObjectShape& y, ObjectShape& out) {
  out.min = std::max(x.min, y.min);
  out.max = std::min(x.max, y.max);
  const auto unite = [](const auto& a, const auto& b) {
    auto both = a;
    for (const auto& rule : b) {
      if (std::find(both.begin(), both.end(), rule) == both.end()) both.push_back(rule);
    }
    return both;
  };
  if (x.evaluated != y.evaluated || x.evaluated != kEmptyNode) {
    out.evaluated = pool_.any_of(x.evaluated, y.evaluated);
  }
  out.rules = unite(x.rules, y.rules);
  out.needs = unite(x.needs, y.needs);
  out.named.reserve(std::max(x.named.size(), y.named.size()));
  const auto by_rules = [&](ObjectShape::Named named, const std::vector<ObjectShape::Rule>& rules) {
    for (const auto& rule : rules) {
      if (pool_.matches(rule.keys, *named.name)) named.value = conjunction(named.value, rule.value);
    }
    return named;
  };
  size_t i = 0, j = 0;
  while (i < x.named.size() || j < y.named.size()) {
    const int order = i == x.named.size()   ? 1
                      : j == y.named.size() ? -1
                                            : x.named[i].name->compare(*y.named[j].name);
    if (order < 0) {
      out.named.push_back(by_rules(x.named[i++], y.rules));
    } else if (order > 0) {
      out.named.push_back(by_rules(y.named[j++], x.rules));
    } else {
      out.named.push_back({x.named[i].name, conjunction(x.named[i].value, y.named[j].value),
                           x.named[i].required || y.named[j].required});
      ++i, ++j;
    }
  }
  return !is_plainly_dead(out);
}

JsonGrammar::Objects JsonGrammar::compute_objects(SchemaId id, Tracking tracking) {
  const Schema& schema = (*schemas_)[id];
  const SchemaId rest = schema.unevaluated_properties;
  if (rest == kNoSchema) return tracked_objects(id, tracking);
  Objects out;
  for (ObjectShape& shape : tracked_objects(id, tracking_for(rest))) {
    ObjectShape unevaluated, merged;
    if (const NodeId keys = pool_.text_complement(shape.evaluated);
        rest != kTrueSchema && keys != kEmptyNode) {
      unevaluated.rules.push_back({keys, value_of(rest)});
    }
    if (!merge(shape, unevaluated, merged)) continue;
    merged.evaluated = tracking == Tracking::kNone ? kEmptyNode : pool_.any_text();
    if (std::find(out.begin(), out.end(), merged) == out.end()) out.push_back(std::move(merged));
  }
  return out;
}

/// All but unevaluatedProperties.
JsonGrammar::Objects JsonGrammar::tracked_objects(SchemaId id, Tracking tracking) {
  const Schema& schema = (*schemas_)[id];
  if (!(schema.types & kObjectBit)) return {};
  ShapeAlgebra<ObjectShape> algebra(*this, id, "objects", &JsonGrammar::objects_of, tracking);
  ObjectShape direct = direct_object(schema);
  if (is_plainly_dead(direct)) return {};
  if (tracking != Tracking::kNone) direct.evaluated = keys_evaluated(schema);
  Objects list = {std::move(direct)};
  for (const auto& [name, others] : schema.dependent_required) {
    ObjectShape present = with_key(name, kAnyValue, true);
    for (const std::string& other : others) {
      ObjectShape merged;
      merge(present, with_key(other, kAnyValue, true), merged);
      present = std::move(merged);
    }
    list = algebra.cross(list, {with_key(name, kNoValue, false), present});
  }
  for (const auto& [name, other] : schema.dependent_schemas) {
    Objects either = algebra.cross({with_key(name, kAnyValue, true)}, algebra.positive(other));
    algebra.add(either, with_key(name, kNoValue, false));
    list = algebra.cross(list, either);
  }
  return algebra.apply(schema, std::move(list));
}

void JsonGrammar::negate_direct_object(const Schema& schema, Objects& out) {
  for (const auto& [name, id] : schema.properties) {
    if (const ValueId wrong = value_of(id, true); wrong != kNoValue) {
      out.push_back(with_key(name, wrong, true));
    }
  }
  for (const std::string& name : schema.required) out.push_back(with_key(name, kNoValue, false));
  const auto some_key = [&](NodeId keys, ValueId value) {
    if (keys == kEmptyNode || value == kNoValue) return;
    ObjectShape shape;
    shape.needs.push_back({keys, value});
    out.push_back(std::move(shape));
  };
  std::vector<NodeId> known;
  for (const auto& [keys, id] : schema.patterns) {
    known.push_back(keys);
    some_key(keys, value_of(id, true));
  }
  if (schema.additional != kNoSchema && schema.additional != kTrueSchema) {
    std::vector<std::string> names;
    for (const auto& property : schema.properties) names.push_back(property.first);
    known.push_back(pool_.literals(std::move(names)));
    some_key(pool_.text_complement(pool_.any_of(known)), value_of(schema.additional, true));
  }
  if (schema.property_names != kNoSchema) {
    some_key(pool_.text_complement(scalars(schema.property_names).text), kAnyValue);
  }
  ObjectShape counted;
  if (schema.min_properties > 0) {
    counted.max = schema.min_properties - 1;
    out.push_back(counted);
  }
  if (schema.max_properties != kUnbounded) {
    counted.max = kUnbounded;
    counted.min = schema.max_properties + 1;
    out.push_back(counted);
  }
}

JsonGrammar::Objects JsonGrammar::compute_negated_objects(SchemaId id) {
  const Schema& schema = (*schemas_)[id];
  if (!(schema.types & kObjectBit)) return {ObjectShape()};
  ShapeAlgebra<ObjectShape> algebra(*this, id, "objects", &JsonGrammar::objects_of);
  Objects direct, out;
  negate_direct_object(schema, direct);
  algebra.unite(out, direct);
  for (const auto& [name, others] : schema.dependent_required) {
    for (const std::string& other : others) {
      if (other == name) continue;
      algebra.unite(out, algebra.cross({with_key(name, kAnyValue, true)},
                                       {with_key(other, kNoValue, false)}));
    }
  }
  for (const auto& [name, other] : schema.dependent_schemas) {
    algebra.unite(out, algebra.cross({with_key(name, kAnyValue, true)}, algebra.negative(other)));
  }
  algebra.apply_negated(schema, out);
  negate_unevaluated(id, out);
  return out;
}

/// So many keys that an answer does not use them up.
bool JsonGrammar::are_plenty(NodeId keys) {
  return pool_.is_infinite(keys) || pool_.count_strings(keys, kPlenty) == kPlenty;
}

/// Each need is met by one of the named keys or by another key: an alternative for each.
void JsonGrammar::settle_needs(const ObjectShape& whole, Objects& out) {
  struct Open {
    ObjectShape shape;  // its needs exclude all keys that are named or cannot be
    std::vector<ObjectShape::Rule> pending;
  };
  std::vector<Open> open = {{whole, whole.needs}};
  open[0].shape.needs.clear();
  while (!open.empty()) {
    Open next = std::move(open.back());
    open.pop_back();
    if (next.pending.empty()) {
      if (out.size() >= options_.max_alternatives) {
        throw Error(ErrorKind::kUnsupported, "a negated schema leaves too many kinds of objects");
      }
      if (std::find(out.begin(), out.end(), next.shape) == out.end()) {
        out.push_back(std::move(next.shape));
      }
      continue;
    }
    const ObjectShape::Rule need = next.pending.back();
    next.pending.pop_back();
    const auto meet_by = [&](const std::string& name) {
      Open met;
      if (!merge(next.shape, with_key(name, need.value, true), met.shape)) return;
      met.pending = next.pending;
      if (met.shape.named.size() > next.shape.named.size()) {  // others could be met by it too
        met.pending.insert(met.pending.end(), met.shape.needs.begin(), met.shape.needs.end());
        met.shape.needs.clear();
      }
      open.push_back(std::move(met));
    };
    NodeId others = need.keys;
    std::vector<std::string> names;
    for (const auto& named : next.shape.named) {
      names.push_back(*named.name);
      if (pool_.matches(need.keys, names.back())) meet_by(names.back());
    }
    if (!names.empty()) others = pool_.all_of(others, pool_.text_complement(pool_.literals(names)));
    for (const auto& rule : next.shape.rules) {
      if (is_plainly_dead(rule.value)) {
        others = pool_.all_of(others, pool_.text_complement(rule.keys));
      }
    }
    if (!pool_.is_live(others)) continue;
    if (are_plenty(others)) {
      next.shape.needs.push_back({others, need.value});
      open.push_back(std::move(next));
      continue;
    }
    if (pool_.count_strings(others, 17) > 16) {
      throw Error(ErrorKind::kUnsupported, "a negated schema on more than 16 keys of a pattern");
    }
    while (pool_.is_live(others)) {
      const std::string name = pool_.shortest(others);
      meet_by(name);
      others = pool_.all_of(others, pool_.text_complement(pool_.literals({name})));
    }
  }
}

ValueId JsonGrammar::rest_value(const ObjectShape& shape, std::string_view key) {
  if (shape.rules.empty()) return kAnyValue;
  uint32_t bits = 0;
  for (size_t i = 0; i < shape.rules.size(); ++i) {
    if (pool_.matches(shape.rules[i].keys, key)) bits |= 1U << i;
  }
  for (const auto& combination : shape.combinations) {
    if (combination.rules == bits) return combination.value;
  }
  return kNoValue;
}

bool JsonGrammar::object_is_live(const ObjectShape& shape) {
  for (const auto& named : shape.named) {
    if (named.required && !is_live(named.value)) return false;
  }
  if (shape.min == 0 && shape.needs.empty()) return true;
  ObjectShape copy = shape;
  return seal_object(copy);
}

/// Works out which keys can have a value. False where no object is valid.
bool JsonGrammar::seal_object(ObjectShape& shape) {
  if (shape.rules.size() > 30) {
    throw Error(ErrorKind::kUnsupported, "more than 30 patterns of keys on one object");
  }
  shape.allowed.assign((shape.named.size() + 63) / 64, 0);
  uint64_t available = 0, required = 0;
  for (size_t i = 0; i < shape.named.size(); ++i) {
    const bool live = pool_.matches(texts_, *shape.named[i].name) && is_live(shape.named[i].value);
    if (shape.named[i].required && !live) return false;
    required += shape.named[i].required;
    if (!live) continue;
    shape.allowed[i / 64] |= uint64_t{1} << (i % 64);
    ++available;
  }
  shape.num_required = static_cast<uint32_t>(required);
  // Which rules can hold together, and whether a value can satisfy them all.
  struct Partial {
    uint32_t rules;
    NodeId keys;
    size_t next;
  };
  NodeId rest = texts_;
  std::vector<Partial> open = {{0, texts_, 0}};
  shape.combinations = {{0, kAnyValue}};
  while (!open.empty()) {
    const Partial at = open.back();
    open.pop_back();
    for (size_t i = at.next; i < shape.rules.size(); ++i) {
      const NodeId keys = pool_.all_of(at.keys, shape.rules[i].keys);
      if (!pool_.is_live(keys)) continue;
      const uint32_t bits = at.rules | 1U << i;
      ValueId value = kAnyValue;
      for (size_t k = 0; k < shape.rules.size(); ++k) {
        if (bits >> k & 1) value = conjunction(value, shape.rules[k].value);
      }
      if (!is_live(value)) {
        rest = pool_.all_of(rest, pool_.text_complement(keys));
        continue;  // nor can more rules
      }
      if (shape.combinations.size() >= kMaxCombinations) {
        throw Error(ErrorKind::kUnsupported, "too many overlapping patterns of keys on one object");
      }
      shape.combinations.push_back({bits, value});
      open.push_back({bits, keys, i + 1});
    }
  }
  if (!pool_.is_live(rest)) rest = kEmptyNode;
  if (rest != kEmptyNode && rest != pool_.any_text() && !shape.named.empty()) {
    std::vector<std::string> names;
    for (const auto& named : shape.named) names.push_back(*named.name);
    rest = pool_.all_of(rest, pool_.text_complement(pool_.literals(std::move(names))));
    if (!pool_.is_live(rest)) rest = kEmptyNode;
  }
  shape.rest_keys = rest;
  shape.rest_is_open = rest == pool_.any_text();
  if (shape.needs.size() > 8) {
    throw Error(ErrorKind::kUnsupported, "more than 8 conditions on some key of one object");
  }
  for (const auto& need : shape.needs) {
    if (shape.max != kUnbounded && shape.needs.size() > 1) {
      throw Error(ErrorKind::kUnsupported,
                  "several conditions on some key together with maxProperties");
    }
    bool met = false, is_scarce = false;
    for (const auto& combination : shape.combinations) {
      NodeId keys = pool_.all_of(need.keys, rest);
      for (size_t k = 0; k < shape.rules.size(); ++k) {
        const NodeId rule = shape.rules[k].keys;
        keys = pool_.all_of(keys, combination.rules >> k & 1 ? rule : pool_.text_complement(rule));
      }
      if (!pool_.is_live(keys)) continue;
      const bool possible = is_live(conjunction(combination.value, need.value));
      if (!possible && shape.max != kUnbounded) {
        throw Error(ErrorKind::kUnsupported, "a condition on some key together with maxProperties");
      }
      met = met || (possible && are_plenty(keys));
      is_scarce = is_scarce || possible;
    }
    if (!met && is_scarce) {
      throw Error(ErrorKind::kUnsupported, "a condition on some key that few keys can meet");
    }
    if (!met) return false;
  }
  if (rest != kEmptyNode) {
    available =
        pool_.is_infinite(rest) ? kUnbounded : available + pool_.count_strings(rest, kUnbounded);
  }
  if (shape.order) seal_order(shape);
  return shape.min <= available && shape.min <= shape.max &&
         required + shape.needs.size() <= shape.max;
}

void JsonGrammar::expand_objects(ValueId id) {
  ShapeAlgebra<ObjectShape> algebra(*this,
                                    values_[id].literals.empty() ? 0 : values_[id].literals[0] / 2,
                                    "objects", &JsonGrammar::objects_of);
  Objects list = {ObjectShape()};
  for (Literal literal : std::vector<Literal>(values_[id].literals)) {
    list = algebra.cross(list, objects_of(literal));
  }
  std::vector<std::string> keys;
  if (options_.key_order == JsonKeyOrder::kSchema) name_keys(keys = keys_in_order(id), list);
  Objects settled;
  for (const ObjectShape& shape : list) {
    if (shape.needs.empty()) {
      settled.push_back(shape);
    } else {
      settle_needs(shape, settled);
    }
  }
  for (ObjectShape& shape : settled) {
    if (!keys.empty()) rank_keys(keys, shape);
    objects_.push_back(std::move(shape));
    values_[id].objects.push_back(static_cast<ShapeId>(objects_.size() - 1));
  }
}

}  // namespace vitrine::constrain
