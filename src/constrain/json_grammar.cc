// SPDX-License-Identifier: Apache-2.0
#include "json_grammar.h"

#include <algorithm>
#include <bit>

#include "schema_fields.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxValues = 100000;
constexpr size_t kMaxGrammarDepth = 1000;

}  // namespace

JsonGrammar::JsonGrammar(std::string_view schema, const SchemaOptions& options)
    : options_(options), pool_(options.max_states) {
  texts_ = pool_.text_without(options.excludes);
  schemas_.emplace(schema, pool_, options);
  make_numbers();
  values_.resize(2);
  values_[kNoValue].live = 0;
  values_[kNoValue].expanded = values_[kNoValue].sealed = true;
  root_ = value_of(schemas_->root());
  compile_all();
}

JsonGrammar::JsonGrammar(const SchemaOptions& options)
    : JsonGrammar("true", SchemaOptions{.whitespace = options.whitespace,
                                        .max_digits = options.max_digits,
                                        .max_states = options.max_states}) {
  keys_may_repeat_ = true;
}

ValueId JsonGrammar::intern(std::vector<Literal> literals) {
  std::sort(literals.begin(), literals.end());
  literals.erase(std::unique(literals.begin(), literals.end()), literals.end());
  std::erase_if(literals, [&](Literal literal) {
    return !(literal & 1) && (*schemas_)[literal / 2].trivial;
  });
  for (size_t i = 0; i < literals.size(); ++i) {
    const Schema& schema = (*schemas_)[literals[i] / 2];
    const bool negated = literals[i] & 1;
    if (negated && schema.trivial) return kNoValue;
    if (literals[i] == kFalseSchema * 2) return kNoValue;
    if (i > 0 && literals[i] / 2 == literals[i - 1] / 2) return kNoValue;  // it and its negation
  }
  std::erase(literals, kFalseSchema * 2 + 1);
  if (literals.empty()) return kAnyValue;
  uint64_t hash = literals.size();
  for (Literal literal : literals) hash = mix_hash(hash, literal);
  if (const auto known = value_ids_.find(hash); known != value_ids_.end()) {
    for (ValueId id : known->second) {
      if (values_[id].literals == literals) return id;
    }
  }
  must_write();
  if (values_.size() >= kMaxValues) {
    throw Error(ErrorKind::kUnsupported, "the schema combines into more than 100000 others");
  }
  values_.push_back({});
  values_.back().literals = std::move(literals);
  const auto id = static_cast<ValueId>(values_.size() - 1);
  value_ids_[hash].push_back(id);
  return id;
}

ValueId JsonGrammar::conjunction(ValueId x, ValueId y) {
  if (x == y || y == kAnyValue) return x;
  if (x == kAnyValue) return y;
  if (x == kNoValue || y == kNoValue) return kNoValue;
  std::vector<Literal> literals = values_[x].literals;
  literals.insert(literals.end(), values_[y].literals.begin(), values_[y].literals.end());
  return intern(std::move(literals));
}

std::string JsonGrammar::place(ValueId id) const {
  return values_[id].literals.empty() ? "" : (*schemas_)[values_[id].literals[0] / 2].pointer;
}

void JsonGrammar::tell_place(ValueId id, const Error& error) const {
  if (std::string_view(error.what()).starts_with("schema at")) throw error;
  unsupported(place(id), error.what());
}

void JsonGrammar::too_many(SchemaId id, const char* what) const {
  unsupported((*schemas_)[id].pointer, std::string("more than ") +
                                           std::to_string(options_.max_alternatives) +
                                           " alternatives for " + what +
                                           " remain open at once; make its branches exclude each "
                                           "other, or raise the limit");
}

void JsonGrammar::expand(ValueId id) {
  if (values_[id].expanded) return;
  must_write();
  values_[id].expanded = true;
  values_[id].scalar = scalar_node(scalars_of(values_[id].literals));
  expand_objects(id);
  expand_arrays(id);
}

bool JsonGrammar::is_live(ValueId id) {
  if (values_[id].live >= 0) return values_[id].live != 0;
  must_write();
  const bool outer = live_in_progress_.empty();
  if (outer) cycle_seen_ = false;
  return live_search(id);
}

/// Whether anything is valid: what is assumed along a cycle is that nothing is.
bool JsonGrammar::live_search(ValueId id) {
  if (values_[id].live >= 0) return values_[id].live != 0;
  if (live_in_progress_.size() > kMaxGrammarDepth)
    unsupported(place(id), "schemas that require each other, too deep");
  if (!live_in_progress_.insert(id).second) {
    cycle_seen_ = true;
    return false;
  }
  bool live = false;
  try {
    expand(id);
    live = values_[id].scalar != kEmptyNode;
    for (ShapeId shape : std::vector<ShapeId>(values_[id].objects)) {
      live = live || object_is_live(objects_[shape]);
    }
    for (ShapeId shape : std::vector<ShapeId>(values_[id].arrays)) {
      live = live || array_is_live(arrays_[shape], id);
    }
  } catch (const Error& error) {
    tell_place(id, error);
  }
  live_in_progress_.erase(id);
  // A "no" that leaned on a cycle holds for where the search began only.
  if (live || !cycle_seen_ || live_in_progress_.empty()) values_[id].live = live ? 1 : 0;
  return live;
}

void JsonGrammar::seal(ValueId id) {
  if (values_[id].sealed) return;
  must_write();
  expand(id);
  values_[id].sealed = true;
  try {
    std::vector<ShapeId> objects = values_[id].objects, arrays = values_[id].arrays;
    std::erase_if(objects, [&](ShapeId shape) { return !seal_object(objects_[shape]); });
    std::erase_if(arrays, [&](ShapeId shape) { return !seal_array(arrays_[shape], id); });
    values_[id].objects = std::move(objects);
    values_[id].arrays = std::move(arrays);
  } catch (const Error& error) {
    tell_place(id, error);
  }
  const Value& value = values_[id];
  if (value.live == 1 && value.scalar == kEmptyNode && value.objects.empty() &&
      value.arrays.empty()) {
    unsupported(place(id), "nothing is valid here, for reasons that depend on each other");
  }
}

NodeId JsonGrammar::unused_scalar(ValueId id, const std::vector<std::string>& used) {
  Scalars rest = scalars_of(values_[id].literals);
  if (rest.written == written_number_) rest.written = written_plain_;
  std::vector<std::string> whole, broken;
  uint64_t num_texts = 0;
  for (const std::string& value : used) {
    if (value == "null") {
      rest.simple &= ~kNullBit;
    } else if (value == "false") {
      rest.simple &= ~kFalseBit;
    } else if (value == "true") {
      rest.simple &= ~kTrueBit;
    } else if (value[0] == '-' || (value[0] >= '0' && value[0] <= '9')) {
      if (value == "0") whole.push_back("-0");
      (value.find('.') == std::string::npos ? whole : broken).push_back(value);
    }
  }
  for (const std::string& value : used) {
    const bool is_one =
        value[0] == '"' && pool_.matches(rest.text, std::string_view(value).substr(1));
    num_texts += is_one ? 1 : 0;
  }
  if (num_texts > 0 && pool_.count_strings(rest.text, num_texts + 1) <= num_texts) {
    rest.text = kEmptyNode;  // all are used
  }
  if (!whole.empty() || !broken.empty()) {
    const NodeId spellings = spellings_of(pool_, std::move(whole), std::move(broken), kUnbounded);
    rest.written = pool_.all_of(rest.written, pool_.raw_not(spellings));
  }
  return scalar_node(rest);
}

uint64_t JsonGrammar::count_scalars(ValueId id, uint64_t limit) {
  const Scalars all = scalars_of(values_[id].literals);
  uint64_t count = static_cast<uint64_t>(std::popcount(all.simple));
  count += pool_.count_strings(all.text, limit);
  // One spelling of each number.
  const NodeId zero = pool_.bytes(ByteSet::range('0', '0'));
  const NodeId digits = pool_.repeat(pool_.bytes(ByteSet::range('0', '9')), 0, kUnbounded);
  const NodeId fraction = pool_.cat(pool_.bytes(ByteSet::range('.', '.')),
                                    pool_.cat(digits, pool_.bytes(ByteSet::range('1', '9'))));
  const NodeId other =
      pool_.all_of(pool_.cat(pool_.integer(false), pool_.any_of(kEpsilonNode, fraction)),
                   pool_.raw_not(pool_.cat(pool_.bytes(ByteSet::range('-', '-')), zero)));
  count += pool_.count_strings(pool_.all_of(all.number, other), limit);
  return std::min(count, limit);
}

void JsonGrammar::compile_all() {
  std::vector<ValueId> open = {root_};
  std::vector<bool> seen;
  const auto add = [&](ValueId id) {
    if (seen.size() <= id) seen.resize(id + 1);
    if (seen[id] || id == kNoValue) return;
    seen[id] = true;
    if (is_live(id)) open.push_back(id);
  };
  if (!is_live(root_)) {
    unsupported(place(root_), "nothing is valid under this schema");
  }
  while (!open.empty()) {
    const ValueId id = open.back();
    open.pop_back();
    seal(id);
    for (ShapeId shape : std::vector<ShapeId>(values_[id].objects)) {
      const ObjectShape& object = objects_[shape];
      for (const auto& named : object.named) add(named.value);
      for (const auto& combination : object.combinations) {
        add(combination.value);
        for (const auto& need : object.needs) add(conjunction(combination.value, need.value));
      }
    }
    for (ShapeId shape : std::vector<ShapeId>(values_[id].arrays)) {
      const ArrayShape& array = arrays_[shape];
      check_items(array, id);
      for (ValueId item : array.prefix) add(item);
      add(array.rest);
      for (const auto& contains : array.contains) {
        add(conjunction(array.rest, contains.match));
        if (contains.max != kUnbounded) add(conjunction(array.rest, contains.mismatch));
      }
    }
  }
}

}  // namespace vitrine::constrain
