// SPDX-License-Identifier: Apache-2.0
// What schemas evaluate, for unevaluatedProperties and unevaluatedItems.
//
// An alternative that knows less than its instances' schemas evaluate is only stricter than it
// should be; with one for every set of branches that may hold together, none is missing. The
// negation asks for a key or an item that is left over: there, each alternative must know all.
#include <algorithm>

#include "json_grammar.h"
#include "schema_fields.h"
#include "shape_algebra.h"

namespace vitrine::constrain {

/// By a schema's own keywords.
NodeId JsonGrammar::keys_evaluated(const Schema& schema) {
  if (!schema.json) return kEmptyNode;  // a value of enum or const evaluates nothing
  if (schema.additional != kNoSchema) return pool_.any_text();
  std::vector<std::string> names;
  for (const auto& property : schema.properties) names.push_back(property.first);
  std::vector<NodeId> keys = {pool_.literals(std::move(names))};
  for (const auto& pattern : schema.patterns) keys.push_back(pattern.first);
  return pool_.any_of(std::move(keys));
}

bool JsonGrammar::covers(const ObjectShape& x, const ObjectShape& y) {
  return x.evaluated == y.evaluated || y.evaluated == kEmptyNode ||
         x.evaluated == pool_.any_text() || pool_.any_of(x.evaluated, y.evaluated) == x.evaluated;
}

void JsonGrammar::set_evaluated(const Schema& schema, ArrayShape& shape) {
  if (!schema.json) return;
  shape.evaluated =
      schema.items != kNoSchema ? kUnbounded : static_cast<uint32_t>(schema.prefix.size());
  if (schema.contains != kNoSchema && schema.contains_evaluates) {
    shape.evaluated_by.push_back(schema.contains);
  }
}

void JsonGrammar::unite_evaluated(const ArrayShape& x, const ArrayShape& y, ArrayShape& out) {
  out.evaluated = std::max(x.evaluated, y.evaluated);
  std::set_union(x.evaluated_by.begin(), x.evaluated_by.end(), y.evaluated_by.begin(),
                 y.evaluated_by.end(), std::back_inserter(out.evaluated_by));
}

bool JsonGrammar::covers(const ArrayShape& x, const ArrayShape& y) {
  return x.evaluated == kUnbounded || (x.evaluated >= y.evaluated &&
                                       std::includes(x.evaluated_by.begin(), x.evaluated_by.end(),
                                                     y.evaluated_by.begin(), y.evaluated_by.end()));
}

/// What unevaluatedItems asks of the items that `shape` leaves over.
ArrayShape JsonGrammar::unevaluated_items(const Schema& schema, const ArrayShape& shape) {
  ArrayShape out;
  if (schema.unevaluated_items == kTrueSchema || shape.evaluated == kUnbounded) return out;
  std::vector<SchemaId> any = shape.evaluated_by;
  any.push_back(schema.unevaluated_items);
  out.prefix.assign(shape.evaluated, kAnyValue);
  out.rest = value_of(schemas_->any_of(std::move(any)));
  return out;
}

void JsonGrammar::negate_unevaluated(SchemaId id, Objects& out) {
  const Schema& schema = (*schemas_)[id];
  const SchemaId rest = schema.unevaluated_properties;
  if (rest == kNoSchema || rest == kTrueSchema) return;
  ShapeAlgebra<ObjectShape> algebra(*this, id, "objects", &JsonGrammar::objects_of);
  for (const ObjectShape& shape : tracked_objects(id, Tracking::kExact)) {
    const NodeId keys = pool_.text_complement(shape.evaluated);
    if (keys == kEmptyNode || value_of(rest, true) == kNoValue) continue;
    ObjectShape left_over, merged;
    left_over.needs.push_back({keys, value_of(rest, true)});
    if (!merge(shape, left_over, merged)) continue;
    merged.evaluated = kEmptyNode;
    algebra.add(out, std::move(merged));
  }
}

void JsonGrammar::negate_unevaluated(SchemaId id, Arrays& out) {
  const Schema& schema = (*schemas_)[id];
  if (schema.unevaluated_items == kNoSchema || schema.unevaluated_items == kTrueSchema) return;
  ShapeAlgebra<ArrayShape> algebra(*this, id, "arrays", &JsonGrammar::arrays_of);
  for (const ArrayShape& shape : tracked_arrays(id, Tracking::kExact)) {
    if (shape.evaluated == kUnbounded) continue;
    std::vector<SchemaId> any = shape.evaluated_by;
    any.push_back(schema.unevaluated_items);
    const SchemaId fit = schemas_->any_of(std::move(any));
    ArrayShape left_over, merged;
    left_over.contains.push_back(
        {value_of(fit, true), value_of(fit), 1, kUnbounded, shape.evaluated});
    if (!merge(shape, left_over, merged)) continue;
    merged.evaluated = 0;
    merged.evaluated_by.clear();
    algebra.add(out, std::move(merged));
  }
}

}  // namespace vitrine::constrain
