// SPDX-License-Identifier: Apache-2.0
// A JSON Schema compiled: what each place of a document may hold.
//
// A *literal* is a subschema or its negation. A *value* is a conjunction of literals: what one
// place must satisfy. Its null, booleans, numbers and strings are one regular language; its objects
// and its arrays are alternatives ("shapes"), each a plain list of conditions that a parser can
// follow from left to right and always complete. Negation, oneOf, if and the like are resolved into
// alternatives when a value is expanded; what has no exact form is refused there.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "regex_pool.h"
#include "schema.h"

namespace vitrine::constrain {

using Literal = uint32_t;  // SchemaId * 2, + 1 where negated
using ValueId = uint32_t;
inline constexpr ValueId kAnyValue = 0;
inline constexpr ValueId kNoValue = 1;

/// Named keys stand by rank; those without one, and keys that are not named, behind all others.
struct KeyOrder {
  std::vector<uint32_t> ranks;     // by named key; num_ranked() where it has none
  std::vector<uint32_t> sequence;  // named keys in their order
  // What sealing adds: of the keys with a rank, how many that must come have a lower one, and how
  // many that may come have this one or a higher one. [num_ranked + 1]
  std::vector<uint32_t> required_below, live_from;
  uint64_t num_rest = 0;  // keys that are not named; kUnbounded: without end
  uint32_t num_ranked() const { return static_cast<uint32_t>(required_below.size()) - 1; }
};

/// Whether shapes know what they evaluate, for unevaluatedProperties and unevaluatedItems.
enum class Tracking : uint8_t {
  kNone,
  kCover,  // for each instance, some alternative that it meets knows all of it
  kExact,  // every alternative that it meets does
};
/// What a schema must know to hold what it leaves unevaluated to `rest`.
inline Tracking tracking_for(SchemaId rest) {
  return rest == kTrueSchema ? Tracking::kNone : Tracking::kCover;
}

struct ObjectShape {
  struct Named {
    const std::string* name = nullptr;
    ValueId value = kAnyValue;
    bool required = false;
  };
  struct Rule {
    NodeId keys = 0;
    ValueId value = kAnyValue;
    bool operator==(const Rule&) const = default;
  };
  std::vector<Named> named;  // sorted by name
  std::vector<Rule> rules;   // for keys that are not named: each that matches counts
  std::vector<Rule> needs;   // some key that is not named must match and have a value like this
  uint32_t min = 0, max = kUnbounded;
  NodeId evaluated = 0;  // keys that count for unevaluatedProperties, where they are tracked

  // What sealing adds.
  struct Combination {
    uint32_t rules = 0;  // bits: the rules that such keys match
    ValueId value = kAnyValue;
  };
  NodeId rest_keys = 0;  // keys that are not named and have some valid value
  std::vector<Combination> combinations;
  std::vector<uint64_t> allowed;  // bits over `named`: has some valid value
  uint32_t num_required = 0;
  bool rest_is_open = false;      // rest_keys is any text
  std::optional<KeyOrder> order;  // where keys must stand in an order
  /// The named keys in an order in which they may stand.
  const Named& named_at(size_t at) const { return named[order ? order->sequence[at] : at]; }
  bool operator==(const ObjectShape& other) const;
};

struct ArrayShape {
  struct Contains {
    ValueId match = kAnyValue, mismatch = kAnyValue;  // mismatch matters where max is bounded
    uint32_t min = 0, max = kUnbounded;
    uint32_t from = 0;  // the first index that counts
    bool operator==(const Contains&) const = default;
  };
  std::vector<ValueId> prefix;
  ValueId rest = kAnyValue;
  uint32_t min = 0, max = kUnbounded;
  bool unique = false, repeated = false;  // no two items are equal; some two are
  std::vector<Contains> contains;
  // What counts for unevaluatedItems, where it is tracked: the first items (kUnbounded: all), and
  // those that one of these schemas accepts.
  uint32_t evaluated = 0;
  std::vector<SchemaId> evaluated_by;  // sorted
  bool operator==(const ArrayShape&) const = default;

  ValueId item(uint32_t index) const { return index < prefix.size() ? prefix[index] : rest; }
};

using ShapeId = uint32_t;

struct Value {
  std::vector<Literal> literals;  // sorted
  NodeId scalar = 0;              // JSON text of its null, booleans, numbers and strings
  std::vector<ShapeId> objects, arrays;
  bool expanded = false;  // the above are set
  bool sealed = false;    // and its shapes can all be completed
  int8_t live = -1;       // whether anything is valid; -1 unknown
};

class JsonGrammar {
 public:
  /// Throws what SchemaSet does, and kUnsupported for what cannot be kept exactly.
  JsonGrammar(std::string_view schema, const SchemaOptions& options);
  /// Any JSON text, with keys that may repeat.
  explicit JsonGrammar(const SchemaOptions& options);

  RegexPool& pool() { return pool_; }
  JsonWhitespace whitespace() const { return options_.whitespace; }
  /// A key that the schema names, in whichever object.
  bool is_named(std::string_view key) const { return names_.contains(key); }
  bool keys_may_repeat() const { return keys_may_repeat_; }
  ValueId root() const { return root_; }
  /// Expanded and sealed.
  const Value& value(ValueId id) {
    if (!values_[id].sealed) seal(id);
    return values_[id];
  }
  bool is_sealed(ValueId id) const { return values_[id].sealed; }
  const ObjectShape& object(ShapeId id) const { return objects_[id]; }
  const ArrayShape& array(ShapeId id) const { return arrays_[id]; }
  bool is_live(ValueId id);
  ValueId conjunction(ValueId x, ValueId y);
  /// The value of a key that is not named.
  ValueId rest_value(const ObjectShape& shape, std::string_view key);

  /// JSON text of the value's null, booleans, numbers and strings but for those used: "null",
  /// "true", "false", a number as Decimal::text spells it, or a quote and a string's characters.
  NodeId unused_scalar(ValueId id, const std::vector<std::string>& used);

  size_t num_values() const { return values_.size(); }
  size_t num_shapes() const { return objects_.size() + arrays_.size(); }

 private:
  struct Scalars {
    uint8_t simple = 0;  // bits of null, false, true
    NodeId text = 0;
    NodeId number = 0;  // every spelling of its numbers that has no exponent where they are bounded
    NodeId written = 0;  // of these, the ones that an answer may have: at least one of each number
  };
  using Objects = std::vector<ObjectShape>;
  using Arrays = std::vector<ArrayShape>;

  ValueId intern(std::vector<Literal> literals);
  ValueId value_of(SchemaId schema, bool negated = false) {
    return intern({schema * 2 + (negated ? 1 : 0)});
  }
  std::string place(ValueId id) const;
  /// Throws the error again, with a place where it has none.
  [[noreturn]] void tell_place(ValueId id, const Error& error) const;
  [[noreturn]] void too_many(SchemaId id, const char* what) const;

  // value_scalars.cc
  const Scalars& scalars(SchemaId id);
  Scalars compute_scalars(SchemaId id);
  void add_numbers(const Schema& schema, Scalars& out);
  Scalars negate(const Scalars& x);
  Scalars unite(const Scalars& x, const Scalars& y);
  Scalars intersect(const Scalars& x, const Scalars& y);
  Scalars scalars_of(const std::vector<Literal>& literals);
  NodeId scalar_node(const Scalars& x);
  void make_numbers();
  /// Types that a literal may have at most.
  uint8_t possible_types(Literal literal);
  /// True where nothing is valid for a reason that shows without a look at objects and arrays.
  bool is_plainly_dead(ValueId id);

  // shape_algebra.h
  /// The literal's shapes, made once. Throws for a $ref that leads back to itself meanwhile.
  template <typename Shapes>
  const Shapes& made_once(std::unordered_map<Literal, Shapes>& memo, Literal literal,
                          Tracking tracking, Shapes (JsonGrammar::*compute)(SchemaId, Tracking),
                          Shapes (JsonGrammar::*compute_negated)(SchemaId));

  // object_shapes.cc
  const Objects& objects_of(Literal literal, Tracking tracking = Tracking::kNone) {
    return made_once(object_memo_, literal, tracking, &JsonGrammar::compute_objects,
                     &JsonGrammar::compute_negated_objects);
  }
  Objects tracked_objects(SchemaId id, Tracking tracking);
  Objects compute_objects(SchemaId id, Tracking tracking);
  Objects compute_negated_objects(SchemaId id);
  ObjectShape direct_object(const Schema& schema);
  void negate_direct_object(const Schema& schema, Objects& out);
  bool merge(const ObjectShape& x, const ObjectShape& y, ObjectShape& out);
  bool is_plainly_dead(const ObjectShape& shape);
  ObjectShape with_key(const std::string& name, ValueId value, bool required);
  bool are_plenty(NodeId keys);
  void settle_needs(const ObjectShape& shape, Objects& out);
  void expand_objects(ValueId id);
  bool seal_object(ObjectShape& shape);
  bool object_is_live(const ObjectShape& shape);

  // array_shapes.cc
  const Arrays& arrays_of(Literal literal, Tracking tracking = Tracking::kNone) {
    return made_once(array_memo_, literal, tracking, &JsonGrammar::compute_arrays,
                     &JsonGrammar::compute_negated_arrays);
  }
  Arrays tracked_arrays(SchemaId id, Tracking tracking);
  Arrays compute_arrays(SchemaId id, Tracking tracking);
  Arrays compute_negated_arrays(SchemaId id);
  void negate_direct_array(const Schema& schema, Arrays& out);
  bool merge(const ArrayShape& x, const ArrayShape& y, ArrayShape& out);
  bool is_plainly_dead(const ArrayShape& shape);
  bool items_are_enough(const ArrayShape& shape);
  bool has_live_container(ValueId id);
  bool has_many_scalars(ValueId id);
  bool is_endless(ValueId id);
  void check_condition(const ArrayShape& shape, ValueId id);
  void check_items(const ArrayShape& shape, ValueId id);
  bool may_grow(const ObjectShape& shape);
  bool may_grow(const ArrayShape& shape);
  void settle_contains(const ArrayShape& shape, ValueId id, Arrays& out);
  void expand_arrays(ValueId id);
  bool seal_array(ArrayShape& shape, ValueId id);
  bool array_is_live(const ArrayShape& shape, ValueId id);

  // unevaluated.cc
  NodeId keys_evaluated(const Schema& schema);
  void set_evaluated(const Schema& schema, ArrayShape& shape);
  void unite_evaluated(const ArrayShape& x, const ArrayShape& y, ArrayShape& out);
  static bool covers(const ArrayShape& x, const ArrayShape& y);
  bool covers(const ObjectShape& x, const ObjectShape& y);
  ArrayShape unevaluated_items(const Schema& schema, const ArrayShape& shape);
  void negate_unevaluated(SchemaId id, Objects& out);
  void negate_unevaluated(SchemaId id, Arrays& out);

  // key_order.cc
  std::vector<std::string> keys_in_order(ValueId id);
  void name_keys(const std::vector<std::string>& keys, Objects& list);
  void rank_keys(const std::vector<std::string>& keys, ObjectShape& shape);
  void seal_order(ObjectShape& shape);

  void expand(ValueId id);
  void seal(ValueId id);
  bool live_search(ValueId id);
  uint64_t count_scalars(ValueId id, uint64_t limit);
  void compile_all();

  template <typename Shape>
  friend class ShapeAlgebra;

  SchemaOptions options_;
  RegexPool pool_;
  NodeId texts_ = 0;  // that strings and keys may be: those without an excluded one
  std::optional<SchemaSet> schemas_;
  bool keys_may_repeat_ = false;
  ValueId root_ = kAnyValue;
  std::deque<Value> values_;
  std::unordered_map<uint64_t, std::vector<ValueId>> value_ids_;
  std::set<std::string, std::less<>> names_;
  std::deque<ObjectShape> objects_;
  std::deque<ArrayShape> arrays_;
  std::vector<std::optional<Scalars>> scalars_;  // by schema
  std::vector<int16_t> types_;                   // by literal
  std::unordered_map<Literal, Objects> object_memo_;
  std::unordered_map<Literal, Arrays> array_memo_;
  std::set<Literal> in_progress_, types_in_progress_;
  std::set<SchemaId> scalars_in_progress_;
  bool cycle_seen_ = false;
  std::set<ValueId> live_in_progress_;
  std::set<ValueId> containers_in_progress_;  // within has_live_container
  NodeId plain_number_ = 0;
  // Under SchemaOptions::max_digits: any number, those without an exponent, those of a schema that
  // asks for whole ones.
  NodeId written_number_ = 0, written_plain_ = 0, written_integer_ = 0;
};

}  // namespace vitrine::constrain
