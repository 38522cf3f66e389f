// SPDX-License-Identifier: Apache-2.0
// The regular part of a schema: null, booleans, numbers and strings. Every combination of schemas
// is one of languages here.
#include <algorithm>

#include "json_grammar.h"
#include "schema_fields.h"

namespace vitrine::constrain {

namespace {

constexpr uint8_t kSimpleBits = kNullBit | kFalseBit | kTrueBit;

}  // namespace

JsonGrammar::Scalars JsonGrammar::unite(const Scalars& x, const Scalars& y) {
  const auto either = [&](NodeId a, NodeId b, NodeId all) {
    return a == all || b == all ? all : pool_.any_of(a, b);
  };
  return {static_cast<uint8_t>(x.simple | y.simple), pool_.any_of(x.text, y.text),
          either(x.number, y.number, pool_.number()),
          either(x.written, y.written, written_number_)};
}

JsonGrammar::Scalars JsonGrammar::intersect(const Scalars& x, const Scalars& y) {
  const auto both = [&](NodeId a, NodeId b, NodeId all) {
    return a == all ? b : b == all ? a : pool_.all_of(a, b);
  };
  return {static_cast<uint8_t>(x.simple & y.simple), both(x.text, y.text, pool_.any_text()),
          both(x.number, y.number, pool_.number()), both(x.written, y.written, written_number_)};
}

JsonGrammar::Scalars JsonGrammar::negate(const Scalars& x) {
  Scalars out;
  out.simple = kSimpleBits & static_cast<uint8_t>(~x.simple);
  out.text = pool_.text_complement(x.text);
  if (x.number == kEmptyNode) {
    out.number = pool_.number();
    out.written = written_number_;
  } else if (x.number != pool_.number()) {
    // Bounded numbers have no exponent, and neither has what they leave.
    out.number = pool_.all_of(plain_number_, pool_.raw_not(x.number));
    out.written = pool_.all_of(written_plain_, pool_.raw_not(x.number));
  }
  return out;
}

void JsonGrammar::make_numbers() {
  const NumberDigits digits = schemas_->digits();
  plain_number_ = pool_.plain_number();
  written_number_ = pool_.number(digits);
  written_plain_ = pool_.plain_number(digits);
  written_integer_ = pool_.integer(options_.integers == JsonIntegers::kAny, digits);
}

void JsonGrammar::add_numbers(const Schema& schema, Scalars& out) {
  std::vector<NodeId> parts, written;
  if (schema.integers_only) {
    parts.push_back(pool_.integer(!schema.exact_integers));
    written.push_back(schema.exact_integers ? pool_.integer(false, schemas_->digits())
                                            : written_integer_);
  }
  if (schema.has_numbers) {
    parts.push_back(schema.numbers);
    written.push_back(schema.written_numbers);
  }
  if (parts.empty() && !schema.bounds.empty()) {
    const bool is_whole = options_.integers == JsonIntegers::kPlain &&
                          std::ranges::any_of(schema.bounds, [](const NumberBound& bound) {
                            return bound.op == NumberBound::kMultipleOf && bound.scale == 0;
                          });
    parts.push_back(plain_number_);
    written.push_back(is_whole ? written_integer_ : written_plain_);
  }
  for (const NumberBound& bound : schema.bounds) {
    parts.push_back(pool_.number_bound(bound));
    written.push_back(parts.back());
  }
  out.number = parts.empty() ? pool_.number() : pool_.all_of(std::move(parts));
  out.written = written.empty() ? written_number_ : pool_.all_of(std::move(written));
}

const JsonGrammar::Scalars& JsonGrammar::scalars(SchemaId id) {
  if (id < scalars_.size() && scalars_[id]) return *scalars_[id];
  must_write();
  if (scalars_.size() < schemas_->size()) scalars_.resize(schemas_->size());
  if (!scalars_in_progress_.insert(id).second) {
    malformed((*schemas_)[id].pointer, "a $ref that leads back to itself without end");
  }
  if (scalars_in_progress_.size() > 1000) {
    unsupported((*schemas_)[id].pointer,
                "schemas within schemas for one value, more than 1000 deep");
  }
  Scalars out = compute_scalars(id);
  scalars_in_progress_.erase(id);
  scalars_[id] = out;
  return *scalars_[id];
}

JsonGrammar::Scalars JsonGrammar::compute_scalars(SchemaId id) {
  const Schema& schema = (*schemas_)[id];
  Scalars out;
  out.simple = schema.types & kSimpleBits;
  if (schema.types & kStringBit) out.text = schema.has_text ? schema.text : pool_.any_text();
  if (schema.types & kNumberBit) add_numbers(schema, out);
  if (schema.reference != kNoSchema) out = intersect(out, scalars(schema.reference));
  if (schema.dynamic_reference != kNoSchema) {
    out = intersect(out, scalars(schema.dynamic_reference));
  }
  for (SchemaId other : schema.all_of) out = intersect(out, scalars(other));
  if (schema.negated != kNoSchema) out = intersect(out, negate(scalars(schema.negated)));
  if (schema.condition != kNoSchema) {
    const Scalars condition = scalars(schema.condition);
    const Scalars yes = intersect(condition, scalars(schema.then_schema));
    const Scalars no = intersect(negate(condition), scalars(schema.else_schema));
    out = intersect(out, unite(yes, no));
  }
  if (schema.has_any_of) {
    Scalars any;
    for (SchemaId other : schema.any_of) any = unite(any, scalars(other));
    out = intersect(out, any);
  }
  if (schema.has_one_of) {
    Scalars once, twice;
    for (SchemaId other : schema.one_of) {
      const Scalars next = scalars(other);
      Scalars again = intersect(once, next);
      if (!pool_.is_live(again.text)) again.text = kEmptyNode;
      if (!pool_.is_live(again.number)) again.number = again.written = kEmptyNode;
      twice = unite(twice, again);
      once = unite(once, next);
    }
    out = intersect(out, intersect(once, negate(twice)));
  }
  return out;
}

JsonGrammar::Scalars JsonGrammar::scalars_of(const std::vector<Literal>& literals) {
  Scalars out{kSimpleBits, texts_, pool_.number(), written_number_};
  for (Literal literal : literals) {
    const Scalars x = scalars(literal / 2);
    out = intersect(out, literal & 1 ? negate(x) : x);
  }
  return out;
}

NodeId JsonGrammar::scalar_node(const Scalars& x) {
  std::vector<std::string> words;
  if (x.simple & kNullBit) words.push_back("null");
  if (x.simple & kFalseBit) words.push_back("false");
  if (x.simple & kTrueBit) words.push_back("true");
  std::vector<NodeId> parts = {pool_.literals(std::move(words))};
  if (pool_.is_live(x.written)) parts.push_back(x.written);
  if (pool_.is_live(x.text)) {
    const NodeId content = pool_.without_idle_lengths(x.text);
    parts.push_back(pool_.cat(pool_.bytes(ByteSet::range('"', '"')), pool_.json_body(content)));
  }
  return pool_.any_of(std::move(parts));
}

uint8_t JsonGrammar::possible_types(Literal literal) {
  must_write();
  if (types_.size() < schemas_->size() * 2) types_.resize(schemas_->size() * 2, -1);
  if (types_[literal] >= 0) return static_cast<uint8_t>(types_[literal]);
  const Schema& schema = (*schemas_)[literal / 2];
  constexpr uint8_t kContainers = kArrayBit | kObjectBit;
  uint8_t out = kContainers;
  if (literal & 1) {
    if (schema.trivial) out = 0;
  } else if (types_in_progress_.insert(literal).second) {
    out = schema.types & kContainers;
    if (schema.reference != kNoSchema) out &= possible_types(schema.reference * 2);
    if (schema.dynamic_reference != kNoSchema) {
      out &= possible_types(schema.dynamic_reference * 2);
    }
    for (SchemaId id : schema.all_of) out &= possible_types(id * 2);
    for (const auto* list : {schema.has_any_of ? &schema.any_of : nullptr,
                             schema.has_one_of ? &schema.one_of : nullptr}) {
      if (!list) continue;
      uint8_t any = 0;
      for (SchemaId id : *list) any |= possible_types(id * 2);
      out &= any;
    }
    types_in_progress_.erase(literal);
  }
  types_[literal] = out;
  return out;
}

bool JsonGrammar::is_plainly_dead(ValueId id) {
  if (id == kNoValue) return true;
  if (values_[id].live >= 0) return values_[id].live == 0;
  if (values_[id].literals.size() < 2) return false;  // contradictions come from combinations
  uint8_t containers = kArrayBit | kObjectBit;
  for (Literal literal : values_[id].literals) containers &= possible_types(literal);
  if (containers != 0) return false;
  const Scalars x = scalars_of(values_[id].literals);
  if (x.simple != 0 || pool_.is_live(x.text) || pool_.is_live(x.number)) return false;
  must_write();
  values_[id].live = 0;
  return true;
}

}  // namespace vitrine::constrain
