// SPDX-License-Identifier: Apache-2.0
// A JSON Schema as its keywords say it: parsed, references resolved, nothing combined yet.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "json_value.h"
#include "regex_pool.h"
#include "vitrine/constrain.h"

namespace vitrine::constrain {

using SchemaId = uint32_t;
inline constexpr SchemaId kNoSchema = 0xFFFFFFFF;
inline constexpr SchemaId kTrueSchema = 0;
inline constexpr SchemaId kFalseSchema = 1;

enum TypeBit : uint8_t {
  kNullBit = 1,
  kFalseBit = 2,
  kTrueBit = 4,
  kNumberBit = 8,  // of any kind
  kStringBit = 16,
  kArrayBit = 32,
  kObjectBit = 64,
  kAllTypes = 127,
};

struct Schema {
  const JsonValue* json = nullptr;  // null: made from a value of enum or const
  std::string pointer;
  bool trivial = false;         // accepts everything
  bool exact_integers = false;  // draft 4: 1.0 is no integer

  uint8_t types = kAllTypes;
  bool integers_only = false;
  NodeId text = 0;  // string content; set where has_text
  bool has_text = false;
  std::vector<NumberBound> bounds;
  // A set of numbers, and how they may be written; set where has_numbers.
  NodeId numbers = 0, written_numbers = 0;
  bool has_numbers = false;

  std::vector<std::pair<std::string, SchemaId>> properties;  // sorted by name
  std::vector<std::pair<NodeId, SchemaId>> patterns;
  SchemaId additional = kNoSchema, property_names = kNoSchema;
  std::vector<std::string> required;
  uint32_t min_properties = 0, max_properties = kUnbounded;
  std::vector<std::pair<std::string, std::vector<std::string>>> dependent_required;
  std::vector<std::pair<std::string, SchemaId>> dependent_schemas;

  std::vector<SchemaId> prefix;
  SchemaId items = kNoSchema;
  uint32_t min_items = 0, max_items = kUnbounded;
  bool unique = false;
  SchemaId contains = kNoSchema;
  uint32_t min_contains = 1, max_contains = kUnbounded;

  std::vector<SchemaId> all_of, any_of, one_of;
  bool has_any_of = false, has_one_of = false;
  SchemaId negated = kNoSchema, condition = kNoSchema, then_schema = kNoSchema,
           else_schema = kNoSchema;
  SchemaId reference = kNoSchema, dynamic_reference = kNoSchema;
  SchemaId unevaluated_properties = kNoSchema, unevaluated_items = kNoSchema;
  bool contains_evaluates = true;      // not in 2019-09
  const JsonValue* members = nullptr;  // whose keys are those of `properties`, as written
};

/// Reads a document and all that it refers to within itself. Throws kBadFile for what is malformed,
/// kUnsupported for a keyword that is not kept; each with the JSON pointer.
class SchemaSet {
 public:
  SchemaSet(std::string_view text, RegexPool& pool, const SchemaOptions& options);

  const Schema& operator[](SchemaId id) const { return schemas_[id]; }
  SchemaId root() const { return root_; }
  size_t size() const { return schemas_.size(); }
  /// Digits that numbers may have: SchemaOptions::max_digits, and more where the document names
  /// longer ones.
  NumberDigits digits() const;
  /// A schema that holds where one of these does. Made once.
  SchemaId any_of(std::vector<SchemaId> ids);
  /// Where a schema stands in the document, for SchemaOptions::key_order.
  uint32_t position(SchemaId id) const;

 private:
  /// What a schema's place in the document, and the way that led to it, say about it.
  struct Context {
    std::string base;
    SchemaDialect dialect;
    uint32_t scope = 0;  // of dynamic_scopes_
  };
  struct Target {
    const JsonValue* json;
    std::string pointer, base;
    SchemaDialect dialect;
  };
  SchemaId load(const JsonValue& json, const std::string& pointer, const Context& at);
  void load_keywords(SchemaId id, const Context& at);
  SchemaId load_member(const Schema& schema, const JsonValue& json, const std::string& key,
                       const Context& at);
  std::vector<SchemaId> load_list(const Schema& schema, const JsonValue& list,
                                  const std::string& key, const Context& at);
  void load_scalars(Schema& schema, const JsonValue& json);
  void load_unevaluated(Schema& schema, const JsonValue& json, const Context& at);
  void load_object(Schema& schema, const JsonValue& json, const Context& at);
  void load_array(Schema& schema, const JsonValue& json, const Context& at);
  void load_applicators(Schema& schema, const JsonValue& json, const Context& at);
  void load_values(Schema& schema, const std::vector<const JsonValue*>& values);
  SchemaId load_constant(const JsonValue& value, const std::string& pointer);
  void load_text(Schema& schema, const JsonValue& json);
  SchemaId resolve(const std::string& reference, const Context& at, const std::string& pointer);
  SchemaId resolve_dynamic(const std::string& reference, const std::string& anchor,
                           const Context& at, const std::string& pointer);
  uint32_t enter(uint32_t scope, const std::string& base, const std::string& pointer);
  SchemaId load_target(const Target& target, const Context& at);
  void collect_ids(const JsonValue& json, const std::string& pointer, const std::string& outer,
                   SchemaDialect dialect);
  void number_places();
  void note(const Decimal& number);
  NodeId pattern(const std::string& text, const std::string& pointer);

  JsonValue document_;
  RegexPool& pool_;
  SchemaOptions options_;
  std::deque<Schema> schemas_;
  std::vector<std::unordered_map<const JsonValue*, SchemaId>> loaded_;  // by scope
  std::map<std::string, NodeId, std::less<>> patterns_;
  struct Pending {
    SchemaId id;
    Context at;
  };
  std::vector<Pending> pending_;
  std::map<std::string, Target, std::less<>> ids_;
  // Dynamic anchors by the resource that holds them; an empty name is $recursiveAnchor's.
  using Anchors = std::map<std::string, Target>;
  std::map<std::string, Anchors, std::less<>> anchors_;
  // Maps each name to the resource that a way from the root met first. The first scope has none.
  using DynamicScope = std::map<std::string, std::string>;
  std::vector<DynamicScope> dynamic_scopes_ = {{}};
  std::map<DynamicScope, uint32_t> scope_ids_ = {{{}, 0}};
  std::map<std::vector<SchemaId>, SchemaId> choices_;
  std::unordered_map<const JsonValue*, uint32_t> positions_;
  SchemaId root_ = kTrueSchema;
  NumberDigits longest_ = {0, 0, 0};  // of the numbers that the document names
};

/// Every spelling without an exponent of numbers given as Decimal::text spells them: those without
/// and those with a fraction, behind which so many zeros may stand.
NodeId spellings_of(RegexPool& pool, std::vector<std::string> whole,
                    std::vector<std::string> broken, uint32_t max_zeros);

/// Closes the objects of a schema (SchemaOptions::close_objects).
void close_objects(JsonValue& schema);

/// A URI reference resolved against a base (RFC 3986, section 5.2); the fragment is kept.
std::string resolve_uri(std::string_view base, std::string_view reference);

}  // namespace vitrine::constrain
