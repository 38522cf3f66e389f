// SPDX-License-Identifier: Apache-2.0
// Tags: free text in which triggers switch constraints on, as JSON says it ("structural tags").
// Every format becomes an expression of a context-free grammar, so that all ways to read a text are
// followed side by side.
#include <algorithm>

#include "char_ranges.h"
#include "constraint_base.h"
#include "lenient.h"
#include "regex_parse.h"
#include "tag_fields.h"

namespace vitrine {

namespace constrain {

namespace {

constexpr int kMaxTagDepth = 100;
constexpr uint32_t kMaxTagRepeat = 10000;

class TagsReader : TagFields {
 public:
  TagsReader(RegexPool& pool, GrammarRules& out, const GrammarOptions& options)
      : pool_(pool), out_(out), options_(options), anything_(pool.raw_not(kEmptyNode)) {}

  void read(std::string_view text) {
    JsonValue document;
    try {
      document = parse_json(text);
    } catch (const Error& error) {
      throw Error(error.kind(), std::string("tags: ") + error.what());
    }
    out_.rules.emplace_back();
    out_.rules[0].name = "tags";
    Expression body = read_document(document);
    out_.rules[0].body = std::move(body);
    out_.rules[0].is_defined = true;
    out_.roots.emplace_back(0, "tags at '#': what they say");
  }

 private:
  static Expression sequence(std::vector<Expression> parts) {
    return Expression::list(Expression::kSequence, std::move(parts));
  }
  static Expression choice(std::vector<Expression> parts) {
    return parts.size() == 1 ? std::move(parts[0])
                             : Expression::list(Expression::kChoice, std::move(parts));
  }
  Expression literal(std::string_view text) { return Expression::of(pool_.literal(text)); }

  Expression read_document(const JsonValue& json) {
    const JsonValue* type = json.find("type");
    if (type == nullptr || !type->is_string() || type->text != "structural_tag") {
      return read_format(json, "", {}, 0);
    }
    if (json.find("structures") != nullptr) {  // as it was before it had formats
      check_keys(json, "", {"type", "structures", "triggers"});
      return read_triggered(json, "", "structures", {}, 0);
    }
    check_keys(json, "", {"type", "format"});
    return read_format(member(json, "", "format"), "/format", {}, 0);
  }

  /// `stops`: what free text within must not hold.
  Expression read_format(const JsonValue& json, const std::string& pointer, const Texts& stops,
                         int depth) {
    if (depth > kMaxTagDepth) refuse(pointer, "formats nested deeper than 100");
    if (!json.is_object()) refuse(pointer, "expected an object");
    if (json.find("type") == nullptr && json.find("tags") != nullptr) {
      check_keys(json, pointer,
                 {"tags", "triggers", "at_least_one", "stop_after_first", "excludes"});
      return read_triggered(json, pointer, "tags", stops, depth);
    }
    const std::string& type = text_member(json, pointer, "type");
    if (type == "const_string") {
      check_keys(json, pointer, {"type", "value"});
      return literal(text_member(json, pointer, "value"));
    }
    if (type == "json_schema") {
      check_keys(json, pointer, {"type", "json_schema", "style", "excludes", "place"});
      if (json.find("style") != nullptr && text_member(json, pointer, "style") != "json") {
        refuse(pointer + "/style", "only the style json is supported", ErrorKind::kUnsupported);
      }
      return read_schema(member(json, pointer, "json_schema"), pointer + "/json_schema",
                         texts_of(json, pointer, "excludes"),
                         json.find("place") == nullptr ? "" : text_member(json, pointer, "place"));
    }
    if (type == "regex") {
      check_keys(json, pointer, {"type", "pattern"});
      return read_regex(text_member(json, pointer, "pattern"), pointer + "/pattern");
    }
    if (type == "grammar") {
      check_keys(json, pointer, {"type", "grammar"});
      return read_grammar(text_member(json, pointer, "grammar"), pointer + "/grammar");
    }
    if (type == "any_text") return read_any_text(json, pointer, stops);
    if (type == "tag") return read_tag(json, pointer, "", depth);
    if (type == "triggered_tags") {
      check_keys(json, pointer,
                 {"type", "tags", "triggers", "at_least_one", "stop_after_first", "excludes"});
      return read_triggered(json, pointer, "tags", stops, depth);
    }
    if (type == "tags_with_separator") return read_separated(json, pointer, depth);
    if (type == "dispatch") return read_dispatch(json, pointer, stops, depth);
    if (type == "sequence" || type == "or") {
      check_keys(json, pointer, {"type", "elements"});
      std::vector<Expression> parts;
      const auto& elements = list_of(json, pointer, "elements");
      for (size_t i = 0; i < elements.size(); ++i) {
        parts.push_back(read_format(elements[i], child(pointer, "elements", i), stops, depth + 1));
      }
      return type == "or" ? choice(std::move(parts)) : sequence(std::move(parts));
    }
    if (type == "optional" || type == "plus" || type == "star" || type == "repeat") {
      return read_repeat(json, pointer, type, stops, depth);
    }
    refuse(pointer + "/type",
           shown(type) +
               " is not supported; expected const_string, json_schema, regex, grammar, "
               "any_text, tag, triggered_tags, tags_with_separator, dispatch, sequence, "
               "or, optional, plus, star or repeat",
           ErrorKind::kUnsupported);
  }

  Expression read_repeat(const JsonValue& json, const std::string& pointer, const std::string& type,
                         const Texts& stops, int depth) {
    uint32_t low = type == "plus" ? 1 : 0, high = type == "optional" ? 1 : kUnbounded;
    if (type == "repeat") {
      check_keys(json, pointer, {"type", "content", "min", "max"});
      const int64_t min = number_of(member(json, pointer, "min"), pointer + "/min");
      const int64_t max = number_of(member(json, pointer, "max"), pointer + "/max");
      if (min < 0 || min > kMaxTagRepeat || max > kMaxTagRepeat || (max >= 0 && max < min)) {
        refuse(pointer, "expected 0 <= min <= max <= 10000, or a max of -1");
      }
      low = static_cast<uint32_t>(min);
      if (max >= 0) high = static_cast<uint32_t>(max);
    } else {
      check_keys(json, pointer, {"type", "content"});
    }
    return Expression::repeat(
        read_format(member(json, pointer, "content"), pointer + "/content", stops, depth + 1), low,
        high);
  }

  // ---- content --------------------------------------------------------------------------------

  /// `excludes`: what no string and no key may hold. `place`: what an error calls the schema;
  /// empty: it is where it stands.
  Expression read_schema(const JsonValue& schema, const std::string& pointer,
                         const Texts& excludes = {}, const std::string& place = {}) {
    std::string text = schema.is_string() ? schema.text : write_json(schema);
    for (const auto& [known, texts, index] : schemas_) {
      if (known == text && texts == excludes) return Expression::json(index);
    }
    SchemaOptions options = options_.schema;
    options.excludes.insert(options.excludes.end(), excludes.begin(), excludes.end());
    try {
      out_.json.push_back(make_json_grammar(text, options, pointer, out_.weakened));
    } catch (const Error& error) {
      const std::string_view what = error.what();
      static constexpr std::string_view kBegin = "schema at '#";
      if (!what.starts_with(kBegin)) refuse(pointer, error.what(), error.kind());
      const std::string rest(what.substr(kBegin.size()));
      throw Error(error.kind(),
                  place.empty() ? "tags at '#" + pointer + rest : place + " at '#" + rest);
    }
    const auto index = static_cast<uint32_t>(out_.json.size() - 1);
    schemas_.push_back({std::move(text), excludes, index});
    return Expression::json(index);
  }

  Expression read_regex(const std::string& pattern, const std::string& pointer) {
    NodeId node = kEmptyNode;
    try {
      node = compile_pattern(pool_, pattern, PatternScope::kWhole);
    } catch (const PatternError& error) {
      refuse(pointer, "the regular expression has " + error.message);
    }
    if (!pool_.is_live(node)) refuse(pointer, "the regular expression matches no text at all");
    return Expression::of(node);
  }

  Expression read_grammar(const std::string& text, const std::string& pointer) {
    GrammarRules inner;
    try {
      inner = parse_grammar(text, pool_, options_.schema);
    } catch (const Error& error) {
      refuse(pointer, error.what());
    }
    const std::string name = inner.rules[inner.root].name;
    const uint32_t root = append(out_, std::move(inner));
    out_.roots.emplace_back(root, "tags at '#" + pointer + "': the grammar's rule '" + name + "'");
    return Expression::reference(root);
  }

  Expression read_any_text(const JsonValue& json, const std::string& pointer, Texts stops) {
    check_keys(json, pointer, {"type", "excludes", "max_chars", "max_tokens"});
    const JsonValue* tokens = json.find("max_tokens");
    if (tokens != nullptr && tokens->type != JsonValue::kNull) {
      refuse(pointer + "/max_tokens", "is not supported; expected max_chars",
             ErrorKind::kUnsupported);
    }
    for (std::string& text : texts_of(json, pointer, "excludes")) stops.push_back(std::move(text));
    NodeId node = pool_.text_without(std::move(stops));
    const JsonValue* most = json.find("max_chars");
    if (most != nullptr && most->type != JsonValue::kNull) {
      const int64_t count = number_of(*most, pointer + "/max_chars");
      if (count < 0) refuse(pointer + "/max_chars", "expected a whole number");
      node = pool_.all_of(node, pool_.repeat(pool_.any_char(), 0, static_cast<uint32_t>(count)));
    }
    return Expression::of(node);
  }

  // ---- tags -----------------------------------------------------------------------------------

  /// `written`: how much of the beginning stands already.
  Expression read_tag(const JsonValue& json, const std::string& pointer, std::string_view written,
                      int depth) {
    check_keys(json, pointer,
               {"type", "begin", "content", "end", "schema", "json_schema", "regex", "grammar"});
    const std::string& begin = text_member(json, pointer, "begin");
    const JsonValue& end = member(json, pointer, "end");
    Texts ends;
    if (end.is_string()) {
      ends = {end.text};
    } else if (end.is_array() && !end.items.empty()) {
      for (size_t i = 0; i < end.items.size(); ++i) {
        ends.push_back(text_of(end.items[i], child(pointer, "end", i)));
      }
    } else {
      refuse(pointer + "/end", "expected a string or a list of strings; tokens are not supported");
    }
    Texts stops = ends;
    std::erase(stops, "");
    const JsonValue* content = nullptr;
    std::string kind;
    for (const char* key : {"content", "schema", "json_schema", "regex", "grammar"}) {
      const JsonValue* value = json.find(key);
      if (value == nullptr) continue;
      if (content != nullptr) {
        refuse(pointer, "'" + kind + "' and '" + key + "' contradict each other");
      }
      content = value;
      kind = key;
    }
    const std::string place = pointer + "/" + kind;
    if (content == nullptr) {
      refuse(pointer,
             "says nothing of its content; expected 'content', 'schema', 'regex' or "
             "'grammar'");
    }
    Expression inner = kind == "content"   ? read_format(*content, place, stops, depth + 1)
                       : kind == "regex"   ? read_regex(text_of(*content, place), place)
                       : kind == "grammar" ? read_grammar(text_of(*content, place), place)
                                           : read_schema(*content, place);
    return sequence({literal(std::string_view(begin).substr(written.size())), std::move(inner),
                     Expression::of(pool_.literals(std::move(ends)))});
  }

  Expression read_triggered(const JsonValue& json, const std::string& pointer,
                            const std::string& key, Texts stops, int depth) {
    const auto& tags = list_of(json, pointer, key);
    Texts begins;
    for (size_t i = 0; i < tags.size(); ++i) {
      const std::string place = child(pointer, key, i);
      if (!tags[i].is_object()) refuse(place, "expected an object");
      begins.push_back(text_member(tags[i], place, "begin"));
      if (begins.back().empty()) refuse(place + "/begin", "expected a string that is not empty");
    }
    const bool is_given = json.find("triggers") != nullptr;
    Texts triggers = texts_of(json, pointer, "triggers");
    if (is_given && triggers.empty()) {
      refuse(pointer + "/triggers", "expected a list that is not empty");
    }
    for (size_t i = 0; i < triggers.size(); ++i) {
      for (size_t j = 0; j < triggers.size(); ++j) {
        if (i != j && triggers[j].starts_with(triggers[i])) {
          refuse(child(pointer, "triggers", j), shown(triggers[j]) + " begins with the trigger " +
                                                    shown(triggers[i]) +
                                                    ", which always comes first");
        }
      }
    }
    if (!is_given) triggers = shortest_of(begins);
    for (std::string& text : texts_of(json, pointer, "excludes")) stops.push_back(std::move(text));

    std::vector<Expression> segments, whole;
    std::vector<bool> is_used(tags.size(), false);
    for (size_t t = 0; t < triggers.size(); ++t) {
      std::vector<Expression> behind;
      for (size_t i = 0; i < tags.size(); ++i) {
        if (!begins[i].starts_with(triggers[t])) continue;
        is_used[i] = true;
        behind.push_back(read_tag(tags[i], child(pointer, key, i), triggers[t], depth));
      }
      const std::string place = is_given ? child(pointer, "triggers", t) : pointer;
      if (behind.empty()) refuse(place, "no tag begins with the trigger " + shown(triggers[t]));
      const NodeId head = text_until(triggers[t], triggers, stops);
      if (!pool_.is_live(head)) {
        refuse(place, "the trigger " + shown(triggers[t]) +
                          " never comes first: another one, or what is excluded, is part of it");
      }
      Expression tag = choice(std::move(behind));
      whole.push_back(sequence({literal(triggers[t]), tag}));
      segments.push_back(sequence({Expression::of(head), std::move(tag)}));
    }
    for (size_t i = 0; i < tags.size(); ++i) {
      if (!is_used[i]) {
        refuse(child(pointer, key, i) + "/begin",
               shown(begins[i]) + " begins with none of the triggers");
      }
    }
    return dispatch(std::move(segments), std::move(whole), triggers, std::move(stops),
                    flag(json, pointer, "at_least_one", false),
                    flag(json, pointer, "stop_after_first", false));
  }

  Expression dispatch(std::vector<Expression> segments, std::vector<Expression> whole,
                      const Texts& triggers, Texts stops, bool at_least_one,
                      bool stop_after_first) {
    if (at_least_one && stop_after_first) return choice(std::move(whole));
    stops.insert(stops.end(), triggers.begin(), triggers.end());
    Expression text = Expression::of(pool_.text_without(std::move(stops)));
    if (stop_after_first) {
      segments.push_back(std::move(text));
      return choice(std::move(segments));
    }
    std::vector<Expression> parts;
    if (at_least_one) parts.push_back(choice(std::move(whole)));
    parts.push_back(Expression::repeat(choice(std::move(segments)), 0, kUnbounded));
    parts.push_back(std::move(text));
    return sequence(std::move(parts));
  }

  Expression read_dispatch(const JsonValue& json, const std::string& pointer, Texts stops,
                           int depth) {
    check_keys(json, pointer, {"type", "rules", "loop", "excludes"});
    const auto& rules = list_of(json, pointer, "rules");
    Texts patterns;
    for (size_t i = 0; i < rules.size(); ++i) {
      const std::string place = child(pointer, "rules", i);
      if (!rules[i].is_array() || rules[i].items.size() != 2) {
        refuse(place, "expected a list of a string and a format");
      }
      patterns.push_back(text_of(rules[i].items[0], place + "/0"));
      if (patterns.back().empty()) refuse(place + "/0", "expected a string that is not empty");
    }
    for (std::string& text : texts_of(json, pointer, "excludes")) stops.push_back(std::move(text));
    std::vector<Expression> segments;
    for (size_t i = 0; i < rules.size(); ++i) {
      const std::string place = child(pointer, "rules", i);
      const NodeId head = text_until(patterns[i], patterns, stops);
      if (!pool_.is_live(head)) {
        refuse(place + "/0", shown(patterns[i]) +
                                 " never comes first: another one, or what is excluded, is part "
                                 "of it");
      }
      segments.push_back(sequence(
          {Expression::of(head), read_format(rules[i].items[1], place + "/1", stops, depth + 1)}));
    }
    return dispatch(std::move(segments), {}, patterns, std::move(stops), false,
                    !flag(json, pointer, "loop", true));
  }

  Expression read_separated(const JsonValue& json, const std::string& pointer, int depth) {
    check_keys(json, pointer, {"type", "tags", "separator", "at_least_one", "stop_after_first"});
    std::vector<Expression> parts;
    const auto& tags = list_of(json, pointer, "tags");
    for (size_t i = 0; i < tags.size(); ++i) {
      parts.push_back(read_tag(tags[i], child(pointer, "tags", i), "", depth));
    }
    Expression one = choice(std::move(parts));
    const std::string& separator = text_member(json, pointer, "separator");
    const uint32_t low = flag(json, pointer, "at_least_one", false) ? 1 : 0;
    if (flag(json, pointer, "stop_after_first", false)) {
      return Expression::repeat(std::move(one), low, 1);
    }
    Expression more = Expression::repeat(sequence({literal(separator), one}), 0, kUnbounded);
    return Expression::repeat(sequence({std::move(one), std::move(more)}), low, 1);
  }

  // ---- free text ------------------------------------------------------------------------------

  static Texts shortest_of(Texts texts) {
    std::sort(texts.begin(), texts.end());  // a beginning stands before what begins with it
    Texts out;
    for (std::string& text : texts) {
      if (out.empty() || !text.starts_with(out.back())) out.push_back(std::move(text));
    }
    return out;
  }
  /// Text up to the first place where one of `triggers` ends, where that one is `trigger`.
  NodeId text_until(const std::string& trigger, const Texts& triggers, const Texts& stops) {
    const NodeId more = pool_.cat(pool_.bytes(ByteSet::range(0, 255)), anything_);
    const NodeId later = pool_.cat(anything_, pool_.cat(pool_.literals(triggers), more));
    std::vector<NodeId> all = {pool_.cat(pool_.any_text(), pool_.literal(trigger)),
                               pool_.raw_not(later)};
    if (!stops.empty()) all.push_back(pool_.raw_not(pool_.bytes_with(stops)));
    return pool_.all_of(std::move(all));
  }

  struct KnownSchema {
    std::string text;
    Texts excludes;
    uint32_t index = 0;  // in out_.json
  };

  RegexPool& pool_;
  GrammarRules& out_;
  const GrammarOptions& options_;
  NodeId anything_;  // any bytes
  std::vector<KnownSchema> schemas_;
};

}  // namespace

}  // namespace constrain

Grammar Grammar::tags(const TokenTable& table, std::string_view json,
                      const GrammarOptions& options) {
  Rules rules(options);
  constrain::TagsReader(*rules.pool, rules.grammar, options).read(json);
  return of_rules(table, std::move(rules));
}

}  // namespace vitrine
