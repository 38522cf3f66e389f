// SPDX-License-Identifier: Apache-2.0
#include "schema.h"

#include <algorithm>
#include <optional>

#include "formats.h"
#include "regex_parse.h"
#include "schema_fields.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxSchemas = 200000;

std::optional<SchemaDialect> dialect_of(std::string_view uri) {
  const std::pair<std::string_view, SchemaDialect> known[] = {
      {"draft-03", SchemaDialect::kDraft4},         {"draft-04", SchemaDialect::kDraft4},
      {"draft-06", SchemaDialect::kDraft6},         {"draft-07", SchemaDialect::kDraft7},
      {"draft/2019-09", SchemaDialect::kDraft2019}, {"draft/2020-12", SchemaDialect::kDraft2020}};
  for (const auto& [name, dialect] : known) {
    if (uri.find(name) != std::string_view::npos) return dialect;
  }
  return std::nullopt;
}

}  // namespace

void malformed(const std::string& pointer, const std::string& what) {
  throw Error(ErrorKind::kBadFile, "schema at '#" + pointer + "': " + what);
}
void unsupported(const std::string& pointer, const std::string& what) {
  throw Error(ErrorKind::kUnsupported, "schema at '#" + pointer + "': " + what);
}

NodeId spellings_of(RegexPool& pool, std::vector<std::string> whole,
                    std::vector<std::string> broken, uint32_t max_zeros) {
  if (max_zeros == 0) {
    whole.insert(whole.end(), std::make_move_iterator(broken.begin()),
                 std::make_move_iterator(broken.end()));
    return pool.literals(std::move(whole));
  }
  const NodeId zero = pool.bytes(ByteSet::range('0', '0'));
  const NodeId zeros =
      pool.cat(pool.bytes(ByteSet::range('.', '.')), pool.repeat(zero, 1, max_zeros));
  return pool.any_of(pool.cat(pool.literals(std::move(whole)), pool.any_of(kEpsilonNode, zeros)),
                     pool.cat(pool.literals(std::move(broken)), pool.repeat(zero, 0, max_zeros)));
}

SchemaSet::SchemaSet(std::string_view text, RegexPool& pool, const SchemaOptions& options)
    : document_(parse_json(text)), pool_(pool), options_(options) {
  if (options.close_objects) close_objects(document_);
  schemas_.emplace_back();
  schemas_.back().trivial = true;
  schemas_.emplace_back();
  schemas_.back().types = 0;
  SchemaDialect dialect = options.dialect;
  if (const JsonValue* uri = document_.find("$schema"); uri && uri->is_string()) {
    const auto known = dialect_of(uri->text);
    if (!known && uri->text.find("json-schema.org") == std::string::npos) {
      unsupported("/$schema", "the meta-schema '" + uri->text.substr(0, 100) + "' is not known");
    }
    dialect = known.value_or(dialect);
  }
  if (text.find("\"$id\"") != std::string_view::npos ||
      text.find("\"id\"") != std::string_view::npos ||
      text.find("nchor\"") != std::string_view::npos) {
    collect_ids(document_, "", "", dialect);
  }
  if (text.find("Ref\"") == std::string_view::npos) anchors_.clear();  // nothing looks for them
  if (options.key_order == JsonKeyOrder::kSchema) number_places();
  Context at{"", dialect};
  const char* id_key = dialect == SchemaDialect::kDraft4 ? "id" : "$id";
  if (const JsonValue* id = document_.find(id_key); id && id->is_string()) at.base = id->text;
  if (at.base.ends_with('#')) at.base.pop_back();
  at.scope = enter(0, at.base, "");
  root_ = load(document_, "", at);
  while (!pending_.empty()) {
    const Pending next = std::move(pending_.back());
    pending_.pop_back();
    load_keywords(next.id, next.at);
  }
}

SchemaId SchemaSet::load(const JsonValue& json, const std::string& pointer, const Context& at) {
  if (json.type == JsonValue::kTrue) return kTrueSchema;
  if (json.type == JsonValue::kFalse) return kFalseSchema;
  if (!json.is_object()) malformed(pointer, "expected a schema: an object, true or false");
  if (json.keys.empty()) return kTrueSchema;
  if (loaded_.size() <= at.scope) loaded_.resize(at.scope + 1);
  const auto [found, is_new] =
      loaded_[at.scope].try_emplace(&json, static_cast<SchemaId>(schemas_.size()));
  if (!is_new) return found->second;
  if (schemas_.size() >= kMaxSchemas) unsupported(pointer, "more than 200000 subschemas");
  schemas_.emplace_back();
  schemas_.back().json = &json;
  schemas_.back().pointer = pointer;
  schemas_.back().exact_integers = at.dialect == SchemaDialect::kDraft4;
  pending_.push_back({found->second, at});
  return found->second;
}

SchemaId SchemaSet::load_member(const Schema& schema, const JsonValue& json, const std::string& key,
                                const Context& at) {
  return load(json, schema.pointer + pointer_token(key), at);
}

std::vector<SchemaId> SchemaSet::load_list(const Schema& schema, const JsonValue& list,
                                           const std::string& key, const Context& at) {
  const std::string pointer = schema.pointer + "/" + key;
  if (!list.is_array()) malformed(pointer, "expected a list of schemas");
  std::vector<SchemaId> out;
  for (size_t i = 0; i < list.items.size(); ++i) {
    out.push_back(load(list.items[i], pointer + "/" + std::to_string(i), at));
  }
  return out;
}

void SchemaSet::load_keywords(SchemaId id, const Context& outer) {
  Schema& schema = schemas_[id];
  const JsonValue& json = *schema.json;
  Context at = outer;
  if (const JsonValue* uri = json.find("$schema"); uri && uri->is_string()) {
    at.dialect = dialect_of(uri->text).value_or(at.dialect);
    schema.exact_integers = at.dialect == SchemaDialect::kDraft4;
  }
  const bool old = at.dialect < SchemaDialect::kDraft2019;
  for (const char* key : {"$schema", "$id", "$anchor", "$dynamicAnchor"}) {
    const JsonValue* value = json.find(key);
    if (value && !value->is_string()) malformed(schema.pointer + "/" + key, "expected a string");
  }
  for (const char* key : {"$defs", "definitions"}) {
    const JsonValue* value = json.find(key);
    if (value && !value->is_object()) malformed(schema.pointer + "/" + key, "expected an object");
  }
  const JsonValue* reference = json.find("$ref");
  const JsonValue* own_id = json.find(at.dialect == SchemaDialect::kDraft4 ? "id" : "$id");
  if (own_id && own_id->is_string() && !(old && reference) && !own_id->text.starts_with('#')) {
    at.base = resolve_uri(outer.base, own_id->text);
    if (at.base.ends_with('#')) at.base.pop_back();
    at.scope = enter(outer.scope, at.base, schema.pointer);
  }
  const auto target_of = [&](const char* keyword) -> const JsonValue* {
    const JsonValue* value = json.find(keyword);
    if (value && !value->is_string()) {
      malformed(schema.pointer + "/" + keyword, "expected a string");
    }
    return value;
  };
  if (target_of("$ref")) {
    schema.reference = resolve(reference->text, at, schema.pointer + "/$ref");
    if (old) return;  // what stands beside it does not count before 2019-09
  }
  if (at.dialect == SchemaDialect::kDraft2019 && target_of("$recursiveRef")) {
    schema.dynamic_reference = resolve_dynamic("#", "", at, schema.pointer + "/$recursiveRef");
  }
  if (const JsonValue* value = old ? nullptr : target_of("$dynamicRef")) {
    const size_t hash = value->text.find('#');
    schema.dynamic_reference =
        resolve_dynamic(value->text, hash == std::string::npos ? "" : value->text.substr(hash + 1),
                        at, schema.pointer + "/$dynamicRef");
  }
  load_scalars(schema, json);
  load_object(schema, json, at);
  load_array(schema, json, at);
  load_applicators(schema, json, at);
  if (!old) load_unevaluated(schema, json, at);
  schema.trivial =
      schema.types == kAllTypes && !schema.integers_only && !schema.has_text &&
      schema.bounds.empty() && !schema.has_numbers && schema.properties.empty() &&
      schema.patterns.empty() && schema.additional == kNoSchema &&
      schema.property_names == kNoSchema && schema.required.empty() && schema.min_properties == 0 &&
      schema.max_properties == kUnbounded && schema.dependent_required.empty() &&
      schema.dependent_schemas.empty() && schema.prefix.empty() && schema.items == kNoSchema &&
      schema.min_items == 0 && schema.max_items == kUnbounded && !schema.unique &&
      schema.contains == kNoSchema && schema.all_of.empty() && !schema.has_any_of &&
      !schema.has_one_of && schema.negated == kNoSchema && schema.condition == kNoSchema &&
      schema.reference == kNoSchema && schema.dynamic_reference == kNoSchema &&
      (schema.unevaluated_properties == kNoSchema ||
       schema.unevaluated_properties == kTrueSchema) &&
      (schema.unevaluated_items == kNoSchema || schema.unevaluated_items == kTrueSchema);
}

void SchemaSet::load_scalars(Schema& schema, const JsonValue& json) {
  const auto type_bits = [&](const JsonValue& name) -> int {
    if (!name.is_string()) return -1;
    if (name.text == "null") return kNullBit;
    if (name.text == "boolean") return kFalseBit | kTrueBit;
    if (name.text == "number") return kNumberBit;
    if (name.text == "integer") return 256;
    if (name.text == "string") return kStringBit;
    if (name.text == "array") return kArrayBit;
    if (name.text == "object") return kObjectBit;
    if (name.text == "any") return kAllTypes;
    return -1;
  };
  if (const JsonValue* type = json.find("type")) {
    int bits = 0;
    const std::vector<JsonValue> one = {*type};
    for (const JsonValue& name : type->is_array() ? type->items : one) {
      const int more = type_bits(name);
      if (more < 0) malformed(schema.pointer + "/type", "expected the name of a type");
      bits |= more;
    }
    schema.integers_only = (bits & 256) && !(bits & kNumberBit);
    schema.types = static_cast<uint8_t>((bits & 127) | (bits & 256 ? kNumberBit : 0));
  }
  const auto bound = [&](const char* key, NumberBound::Op op, const char* strict,
                         NumberBound::Op strict_op) {
    const JsonValue* value = json.find(key);
    if (!value) return;
    if (value->is_bool()) return;  // draft 4's exclusiveMinimum, read with the bound it belongs to
    const auto decimal =
        value->type == JsonValue::kNumber ? parse_decimal(value->text) : std::nullopt;
    if (!decimal) malformed(schema.pointer + "/" + key, "expected a number of at most 1000 digits");
    const JsonValue* flag = strict ? json.find(strict) : nullptr;
    NumberBound out;
    out.op = flag && flag->type == JsonValue::kTrue ? strict_op : op;
    out.value = *decimal;
    note(*decimal);
    schema.bounds.push_back(out);
  };
  bound("minimum", NumberBound::kAtLeast, "exclusiveMinimum", NumberBound::kAbove);
  bound("maximum", NumberBound::kAtMost, "exclusiveMaximum", NumberBound::kBelow);
  bound("exclusiveMinimum", NumberBound::kAbove, nullptr, NumberBound::kAbove);
  bound("exclusiveMaximum", NumberBound::kBelow, nullptr, NumberBound::kBelow);
  if (const JsonValue* value = json.find("multipleOf")) {
    const auto decimal =
        value->type == JsonValue::kNumber ? parse_decimal(value->text) : std::nullopt;
    if (!decimal || decimal->negative || decimal->is_zero()) {
      malformed(schema.pointer + "/multipleOf", "expected a number above 0");
    }
    const auto step = multiple_of(*decimal);
    if (!step) unsupported(schema.pointer + "/multipleOf", "it has too many digits");
    note(*decimal);
    schema.bounds.push_back(*step);
  }
  load_text(schema, json);
  std::vector<const JsonValue*> values;
  if (const JsonValue* list = json.find("enum")) {
    if (!list->is_array()) malformed(schema.pointer + "/enum", "expected a list");
    for (const JsonValue& value : list->items) values.push_back(&value);
    load_values(schema, values);
  }
  if (const JsonValue* value = json.find("const")) load_values(schema, {value});
}

void SchemaSet::note(const Decimal& number) {
  longest_.integer = std::max(longest_.integer, static_cast<uint32_t>(number.integer.size()));
  longest_.fraction = std::max(longest_.fraction, static_cast<uint32_t>(number.fraction.size()));
}

NumberDigits SchemaSet::digits() const {
  constexpr uint32_t kMore = 3, kExponent = 3;  // between two numbers lie those of more digits
  const uint32_t most = options_.max_digits;
  if (most == 0) return {};
  return {std::max(most, longest_.integer + kMore), std::max(most, longest_.fraction + kMore),
          kExponent};
}

NodeId SchemaSet::pattern(const std::string& text, const std::string& pointer) {
  const auto found = patterns_.find(text);
  if (found != patterns_.end()) return found->second;
  NodeId node = 0;
  try {
    node = compile_pattern(pool_, text, PatternScope::kSearch);
  } catch (const PatternError& error) {
    unsupported(pointer, "the pattern has " + error.message);
  }
  patterns_.emplace(text, node);
  return node;
}

void SchemaSet::load_text(Schema& schema, const JsonValue& json) {
  const uint32_t low = read_count(json, "minLength", schema.pointer, 0);
  const uint32_t high = read_count(json, "maxLength", schema.pointer, kUnbounded);
  std::vector<NodeId> parts;
  if (low > 0 || high != kUnbounded) {
    parts.push_back(low > high ? kEmptyNode : pool_.repeat(pool_.any_char(), low, high));
  }
  if (const JsonValue* value = json.find("pattern")) {
    const std::string pointer = schema.pointer + "/pattern";
    if (!value->is_string()) malformed(pointer, "expected a string");
    parts.push_back(pattern(value->text, pointer));
  }
  const JsonValue* format = json.find("format");
  if (format && !format->is_string()) malformed(schema.pointer + "/format", "expected a string");
  if (format && options_.format == JsonFormat::kAssert) {
    const NodeId node = format_language(pool_, format->text);
    if (node != kEmptyNode) parts.push_back(node);
  }
  if (parts.empty()) return;
  schema.has_text = true;
  schema.text = pool_.all_of(std::move(parts));
}

void SchemaSet::load_values(Schema& schema, const std::vector<const JsonValue*>& values) {
  Schema scalars;
  scalars.types = 0;
  scalars.has_text = scalars.has_numbers = true;
  std::vector<std::string> texts, whole, broken;
  std::string zero;  // another spelling of it
  std::vector<const JsonValue*> composite;
  for (const JsonValue* value : values) {
    switch (value->type) {
      case JsonValue::kNull: scalars.types |= kNullBit; break;
      case JsonValue::kFalse: scalars.types |= kFalseBit; break;
      case JsonValue::kTrue: scalars.types |= kTrueBit; break;
      case JsonValue::kString:
        scalars.types |= kStringBit;
        texts.push_back(value->text);
        break;
      case JsonValue::kNumber: {
        const auto decimal = parse_decimal(value->text);
        if (!decimal) unsupported(schema.pointer, "a number of more than 1000 digits");
        scalars.types |= kNumberBit;
        note(*decimal);
        (decimal->fraction.empty() ? whole : broken).push_back(decimal->text());
        if (decimal->is_zero()) zero = "-0";
        break;
      }
      default: composite.push_back(value);
    }
  }
  scalars.text = pool_.literals(std::move(texts));
  const bool is_plain = options_.integers == JsonIntegers::kPlain;
  const uint32_t max_zeros = options_.max_digits == 0 ? kUnbounded : options_.max_digits;
  if (is_plain) scalars.written_numbers = spellings_of(pool_, whole, broken, 0);
  if (!zero.empty()) whole.push_back(zero);
  scalars.numbers = spellings_of(pool_, whole, broken, kUnbounded);
  if (!is_plain) scalars.written_numbers = spellings_of(pool_, whole, broken, max_zeros);
  scalars.pointer = schema.pointer;
  if (composite.empty()) {
    schema.types &= scalars.types;
    schema.text = schema.has_text ? pool_.all_of(schema.text, scalars.text) : scalars.text;
    schema.numbers =
        schema.has_numbers ? pool_.all_of(schema.numbers, scalars.numbers) : scalars.numbers;
    schema.written_numbers = schema.has_numbers
                                 ? pool_.all_of(schema.written_numbers, scalars.written_numbers)
                                 : scalars.written_numbers;
    schema.has_text = schema.has_numbers = true;
    return;
  }
  Schema choice;
  choice.pointer = schema.pointer;
  choice.has_any_of = true;
  schemas_.push_back(std::move(scalars));
  choice.any_of.push_back(static_cast<SchemaId>(schemas_.size() - 1));
  for (const JsonValue* value : composite) {
    choice.any_of.push_back(load_constant(*value, schema.pointer));
  }
  schemas_.push_back(std::move(choice));
  schema.all_of.push_back(static_cast<SchemaId>(schemas_.size() - 1));
}

SchemaId SchemaSet::load_constant(const JsonValue& value, const std::string& pointer) {
  Schema out;
  out.pointer = pointer;
  if (value.is_array()) {
    out.types = kArrayBit;
    for (const JsonValue& item : value.items) out.prefix.push_back(load_constant(item, pointer));
    out.min_items = out.max_items = static_cast<uint32_t>(value.items.size());
  } else if (value.is_object()) {
    out.types = kObjectBit;
    std::map<std::string, const JsonValue*> members;
    for (size_t i = 0; i < value.keys.size(); ++i) members[value.keys[i]] = &value.items[i];
    for (const auto& [key, member] : members) {
      out.properties.emplace_back(key, load_constant(*member, pointer));
      out.required.push_back(key);
    }
    out.additional = kFalseSchema;
    out.members = &value;
  } else {
    load_values(out, {&value});
  }
  schemas_.push_back(std::move(out));
  return static_cast<SchemaId>(schemas_.size() - 1);
}

}  // namespace vitrine::constrain
