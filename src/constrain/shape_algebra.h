// SPDX-License-Identifier: Apache-2.0
// The combining keywords over alternatives, the same for objects and arrays.
#pragma once

#include <vector>

#include "json_grammar.h"
#include "schema_fields.h"

namespace vitrine::constrain {

template <typename Shape>
class ShapeAlgebra {
 public:
  using List = std::vector<Shape>;
  using Of = const List& (JsonGrammar::*)(Literal, Tracking);

  ShapeAlgebra(JsonGrammar& grammar, SchemaId id, const char* what, Of of,
               Tracking tracking = Tracking::kNone)
      : grammar_(grammar), id_(id), what_(what), of_(of), tracking_(tracking) {}

  const List& positive(SchemaId id) { return (grammar_.*of_)(id * 2, tracking_); }
  /// What does not hold evaluates nothing.
  const List& negative(SchemaId id) { return (grammar_.*of_)(id * 2 + 1, Tracking::kNone); }

  List cross(const List& x, const List& y) {
    List out;
    for (const Shape& a : x) {
      for (const Shape& b : y) {
        Shape merged;
        if (!grammar_.merge(a, b, merged)) continue;
        add(out, std::move(merged));
      }
    }
    return out;
  }
  void add(List& list, Shape shape) {
    for (const Shape& other : list) {
      if (other == shape) return;
    }
    if (list.size() >= grammar_.options_.max_alternatives) grammar_.too_many(id_, what_);
    list.push_back(std::move(shape));
  }
  void unite(List& list, const List& more) {
    for (const Shape& shape : more) add(list, shape);
  }

  /// What the combining keywords of a schema leave of `list`.
  List apply(const Schema& schema, List list) {
    const auto narrow = [&](const List& other) {
      if (!list.empty()) list = cross(list, other);
    };
    if (schema.reference != kNoSchema) narrow(positive(schema.reference));
    if (schema.dynamic_reference != kNoSchema) narrow(positive(schema.dynamic_reference));
    for (SchemaId id : schema.all_of) narrow(positive(id));
    if (schema.negated != kNoSchema) narrow(negative(schema.negated));
    if (schema.condition != kNoSchema) {
      List both = cross(positive(schema.condition), positive(schema.then_schema));
      unite(both, cross(negative(schema.condition), positive(schema.else_schema)));
      narrow(both);
    }
    if (schema.has_any_of) narrow(some_of(schema.any_of));
    if (schema.has_one_of) list = exactly_one(schema.one_of, list);
    return list;
  }

  /// The alternatives of the negation of those keywords, added to `out`.
  void apply_negated(const Schema& schema, List& out) {
    if (schema.reference != kNoSchema) unite(out, negative(schema.reference));
    if (schema.dynamic_reference != kNoSchema) unite(out, negative(schema.dynamic_reference));
    for (SchemaId id : schema.all_of) unite(out, negative(id));
    if (schema.negated != kNoSchema) unite(out, positive(schema.negated));
    if (schema.condition != kNoSchema) {
      unite(out, cross(positive(schema.condition), negative(schema.then_schema)));
      unite(out, cross(negative(schema.condition), negative(schema.else_schema)));
    }
    if (schema.has_any_of) unite(out, none_of(schema.any_of));
    if (!schema.has_one_of) return;
    unite(out, none_of(schema.one_of));
    for (size_t i = 0; i < schema.one_of.size(); ++i) {
      for (size_t j = i + 1; j < schema.one_of.size(); ++j) {
        unite(out, cross(positive(schema.one_of[i]), positive(schema.one_of[j])));
      }
    }
  }

 private:
  /// At least one branch. Each that holds evaluates what it knows, so where that is tracked there
  /// is an alternative for several that hold together, too.
  List some_of(const std::vector<SchemaId>& ids) {
    List some, none = {Shape()};
    for (SchemaId id : ids) {
      const List& branch = positive(id);
      if (tracking_ == Tracking::kExact) {
        List next = cross(some, branch);
        unite(next, cross(some, negative(id)));
        unite(next, cross(none, branch));
        none = cross(none, negative(id));
        some = std::move(next);
        continue;
      }
      const List before = tracking_ == Tracking::kNone ? List() : some;
      unite(some, branch);
      for (const Shape& a : before) {
        for (const Shape& b : branch) {
          Shape both;
          if (grammar_.covers(a, b) || grammar_.covers(b, a)) continue;
          if (grammar_.merge(a, b, both)) add(some, std::move(both));
        }
      }
    }
    return some;
  }

  List none_of(const std::vector<SchemaId>& ids) {
    List out = {Shape()};
    for (SchemaId id : ids) out = cross(out, negative(id));
    return out;
  }

  /// Each branch without those of the others that it shares something with, within `base`.
  List exactly_one(const std::vector<SchemaId>& ids, const List& base) {
    std::vector<List> branches;
    for (SchemaId id : ids) branches.push_back(cross(base, positive(id)));
    List out;
    for (size_t i = 0; i < ids.size(); ++i) {
      List rest = branches[i];
      for (size_t j = 0; j < ids.size() && !rest.empty(); ++j) {
        if (i == j) continue;
        // Alternatives that have nothing in common with the other branch stay as they are.
        List shared, apart;
        for (Shape& shape : rest) {
          bool meets = false;
          for (const Shape& other : (grammar_.*of_)(ids[j] * 2, Tracking::kNone)) {
            Shape merged;
            meets = grammar_.merge(shape, other, merged);
            if (meets) break;
          }
          (meets ? shared : apart).push_back(std::move(shape));
        }
        if (!shared.empty()) unite(apart, cross(shared, negative(ids[j])));
        rest = std::move(apart);
      }
      unite(out, rest);
    }
    return out;
  }

  JsonGrammar& grammar_;
  SchemaId id_;
  const char* what_;
  Of of_;
  Tracking tracking_;
};

template <typename Shapes>
const Shapes& JsonGrammar::made_once(std::unordered_map<Literal, Shapes>& memo, Literal literal,
                                     Tracking tracking,
                                     Shapes (JsonGrammar::*compute)(SchemaId, Tracking),
                                     Shapes (JsonGrammar::*compute_negated)(SchemaId)) {
  const Literal key = literal | static_cast<uint32_t>(tracking) << 30;
  const auto found = memo.find(key);
  if (found != memo.end()) return found->second;
  must_write();
  if (!in_progress_.insert(key).second) {
    malformed((*schemas_)[literal / 2].pointer, "a $ref that leads back to itself without end");
  }
  Shapes shapes =
      literal & 1 ? (this->*compute_negated)(literal / 2) : (this->*compute)(literal / 2, tracking);
  in_progress_.erase(key);
  return memo.emplace(key, std::move(shapes)).first->second;
}

}  // namespace vitrine::constrain
