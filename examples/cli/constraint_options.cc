// SPDX-License-Identifier: Apache-2.0
#include "constraint_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "answer_command.h"
#include "candidates.h"
#include "failure_text.h"
#include "option_section.h"
#include "text_file.h"

namespace cli {

namespace {

constexpr size_t kConstraintOptionsMaxFileBytes = size_t{64} << 20;
constexpr size_t kMaxText = 1024;  // of a constraint, in a log's head
constexpr int kDefaultRetries = 3;
constexpr int kJumpTokens = 16;  // of a step that computes what a constraint forces

CLI::Validator some_text(const std::string& what) {
  return CLI::Validator(
      [what](const std::string& text) {
        return text.empty() ? "is empty; expected " + what : std::string();
      },
      "");
}

bool is_file(const std::string& value) {
  std::error_code error;
  return std::filesystem::is_regular_file(value, error);
}

/// Whether a schema, or what tags hold, was given as JSON itself in a file's place.
bool is_json_text(const std::string& value) {
  const size_t first = value.find_first_not_of(" \t\r\n");
  return first != value.npos && (value[first] == '{' || value[first] == '[') && !is_file(value);
}

constexpr const char* kRuleBlanks = " \t\n\v\f\r";

/// Returns true where a text begins with a rule: a name, behind ? or ! of Lark's, then ::= or a
/// colon and a blank.
bool begins_with_rule(std::string_view text) {
  const auto skip = [&](const char* characters) {
    text.remove_prefix(std::min(text.find_first_not_of(characters), text.size()));
  };
  constexpr const char* kNameBegins = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_";
  constexpr const char* kNames =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_0123456789.-";
  skip(kRuleBlanks);
  if (text.starts_with('?') || text.starts_with('!')) text.remove_prefix(1);
  if (text.find_first_of(kNameBegins) != 0) return false;
  skip(kNames);
  skip(kRuleBlanks);
  return text.starts_with("::=") ||
         (text.size() > 1 && text[0] == ':' && text.find_first_of(kRuleBlanks, 1) == 1);
}

/// Returns true for the text of a grammar: GBNF's and Lark's rules have a name, then ::= or a
/// colon.
bool is_grammar_text(const std::string& value) {
  if (value.ends_with(".gbnf") || value.ends_with(".lark") || is_file(value)) return false;
  for (size_t begin = 0; begin < value.size();) {
    if (begins_with_rule(std::string_view(value).substr(begin))) return true;
    begin = std::min(value.find('\n', begin), value.size() - 1) + 1;
  }
  return false;
}

/// What a constraint is made of.
struct Source {
  std::string text;
  std::string name;  // of the file, or of the option whose value the text is
};

Source read_source(const std::string& value, bool is_text, const char* option) {
  if (is_text) return {value, option};
  return {read_text_file(value, kConstraintOptionsMaxFileBytes), value};
}
Source json_source(const std::string& value, const char* option) {
  return read_source(value, is_json_text(value), option);
}
Source grammar_source(const std::string& value) {
  return read_source(value, is_grammar_text(value), "--grammar");
}

}  // namespace

vitrine::JsonKeyOrder key_order_of(const std::string& name) {
  return name == "schema" ? vitrine::JsonKeyOrder::kSchema : vitrine::JsonKeyOrder::kAny;
}

void add_key_order(CLI::App& command, std::string& key_order) {
  command
      .add_option("--key-order", key_order,
                  "order of an object's keys: any, or schema (those of `properties` as written, "
                  "then others)")
      ->check(CLI::IsMember({"any", "schema"}))
      ->capture_default_str();
}

vitrine::JsonIntegers integers_of(const std::string& name) {
  return name == "any" ? vitrine::JsonIntegers::kAny : vitrine::JsonIntegers::kPlain;
}

void add_integers(CLI::App& command, std::string& integers) {
  command
      .add_option("--integers", integers,
                  "how a number is written that the schema makes a whole one: plain (10), or any "
                  "(10.0, too)")
      ->check(CLI::IsMember({"plain", "any"}))
      ->capture_default_str();
}

void add_close_objects(CLI::App& command, bool& close_objects) {
  command.add_flag("--close-objects", close_objects,
                   "an object whose schema lists `properties` has no others, as if it said "
                   "\"additionalProperties\": false");
}

void ConstraintOptions::add_to(CLI::App& command) {
  tools.add_to(command);
  const OptionSection section(command, "Constraint");
  command
      .add_option("-j,--json-schema", json_schema,
                  "the answer is JSON that this schema, a file or the JSON itself, accepts")
      ->check(not_empty());
  command.add_flag("--json-object", json_object, "the answer is a JSON object");
  command.add_option("--regex", regex, "the answer matches this regular expression as a whole")
      ->check(some_text("a regular expression"));
  command
      .add_option(
          "--grammar", grammar,
          "the answer is a text of this grammar (GBNF or Lark), a file or its rules themselves")
      ->check(not_empty());
  command
      .add_option(
          "--tags", tags,
          "the answer is text in which tags hold what this JSON, a file or itself, says of each")
      ->check(not_empty());
  command.add_option("--choice", choices, "the answer is this text; may be given again")
      ->check(some_text("a text"))
      ->allow_extra_args(false);
  command.add_option("--whitespace", whitespace, "white space between the parts of JSON")
      ->check(CLI::IsMember({"rfc", "one-line", "compact"}))
      ->capture_default_str();
  command.add_option("--format", format, "what `format` means in a schema")
      ->check(CLI::IsMember({"assert", "annotate"}))
      ->capture_default_str();
  add_key_order(command, key_order);
  add_integers(command, integers);
  add_close_objects(command, close_objects);
  command.add_flag(
      "--lenient", lenient,
      "leave out of a schema what cannot be kept exactly, with a warning that names it");
  command
      .add_option("--jump-forward", jump_forward,
                  "what the constraint forces is spelt as the tokenizer does, in one step: on, or "
                  "off (a step a token, of the model's choice among spellings)")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str();
  command
      .add_option("--on-deadlock", on_deadlock,
                  "where no token leads on under the constraint: fail, or validate-retry (answers "
                  "without it, until one is valid)")
      ->check(CLI::IsMember({"fail", "validate-retry"}))
      ->capture_default_str();
  command
      .add_option("--validate-with", validate_with,
                  "a command that gets each whole answer on standard input; where it exits with 1, "
                  "another answer is made under the constraint")
      ->check(some_text("a command"));
  command
      .add_option("--max-retries", max_retries,
                  fmt::format("how many further answers at most (default: {})", kDefaultRetries))
      ->check(CLI::Range(1, 1000));
}

void ConstraintOptions::check() const {
  const std::pair<bool, const char*> kinds[] = {{!json_schema.empty(), "--json-schema"},
                                                {json_object, "--json-object"},
                                                {!regex.empty(), "--regex"},
                                                {!grammar.empty(), "--grammar"},
                                                {!tags.empty(), "--tags"},
                                                {!choices.empty(), "--choice"},
                                                {tools.is_given(), "--tools"}};
  tools.check();
  const char* first = nullptr;
  for (const auto& [is_one, name] : kinds) {
    if (!is_one) continue;
    if (first != nullptr) {
      refuse(fmt::format("{} and {} contradict each other; expected one of them", first, name));
    }
    first = name;
  }
  const bool is_schema =
      !json_schema.empty() || !tags.empty() || !grammar.empty() || tools.is_given();
  const std::tuple<bool, bool, const char*, const char*> needs[] = {
      {whitespace != "one-line", is_schema || json_object, "--whitespace",
       "--json-schema, --json-object, --tags, --tools or --grammar"},
      {format != "assert", is_schema, "--format", "--json-schema, --tags, --tools or --grammar"},
      {key_order != "any", is_schema, "--key-order", "--json-schema, --tags, --tools or --grammar"},
      {integers != "plain", is_schema, "--integers", "--json-schema, --tags, --tools or --grammar"},
      {close_objects, is_schema, "--close-objects", "--json-schema, --tags, --tools or --grammar"},
      {lenient, is_schema, "--lenient", "--json-schema, --tags, --tools or --grammar"},
      {jump_forward != "on", is_given(), "--jump-forward", "a constraint (--json-schema, …)"},
      {on_deadlock != "fail", is_given(), "--on-deadlock", "a constraint (--json-schema, …)"},
      {!validate_with.empty(), is_given(), "--validate-with", "a constraint (--json-schema, …)"},
      {max_retries != 0, may_begin_anew(), "--max-retries",
       "--on-deadlock validate-retry or --validate-with"}};
  for (const auto& [is_one, is_fit, name, needed] : needs) {
    if (is_one && !is_fit) refuse(fmt::format("{} does nothing here; expected {}", name, needed));
  }
}

vitrine::Grammar ConstraintOptions::compile(
    const vitrine::Tokenizer& tokenizer, int32_t vocab_size, const std::vector<int32_t>& end_ids,
    const std::vector<int32_t>& banned, const std::optional<vitrine::ToolCallTags>& calls) const {
  vitrine::TokenTable table = vitrine::make_token_table(tokenizer, vocab_size, end_ids);
  if (calls) table = table.with(calls->marks);
  table = table.without(banned);
  if (!regex.empty()) return vitrine::Grammar::regex(table, regex);
  if (!choices.empty()) return vitrine::Grammar::choices(table, choices);
  vitrine::SchemaOptions options;
  options.lenient = lenient;
  options.key_order = key_order_of(key_order);
  options.integers = integers_of(integers);
  options.close_objects = close_objects;
  if (format == "annotate") options.format = vitrine::JsonFormat::kAnnotate;
  options.whitespace = whitespace == "rfc"       ? vitrine::JsonWhitespace::kRfc
                       : whitespace == "compact" ? vitrine::JsonWhitespace::kCompact
                                                 : vitrine::JsonWhitespace::kOneLine;
  vitrine::GrammarOptions grammar_options;
  grammar_options.schema = options;
  const Source source = calls ? Source{calls->json, tools.is_text() ? "--tools" : tools.definitions}
                        : !grammar.empty()     ? grammar_source(grammar)
                        : !tags.empty()        ? json_source(tags, "--tags")
                        : !json_schema.empty() ? json_source(json_schema, "--json-schema")
                                               : Source{R"({"type":"object"})", "--json-object"};
  try {
    if (calls || !tags.empty()) return vitrine::Grammar::tags(table, source.text, grammar_options);
    if (grammar.empty()) return vitrine::Grammar::json_schema(table, source.text, options);
    return is_lark(source.text) ? vitrine::Grammar::lark(table, source.text, grammar_options)
                                : vitrine::Grammar::gbnf(table, source.text, grammar_options);
  } catch (const vitrine::Error& error) {
    throw vitrine::Error(error.kind(), source.name + ": " + error.what());
  }
}

std::vector<NamedPath> ConstraintOptions::files() const {
  std::vector<NamedPath> files;
  if (!is_json_text(json_schema)) files.emplace_back("--json-schema", json_schema);
  if (!is_grammar_text(grammar)) files.emplace_back("--grammar", grammar);
  if (!is_json_text(tags)) files.emplace_back("--tags", tags);
  for (NamedPath& file : tools.files()) files.push_back(std::move(file));
  return files;
}

std::future<size_t> ConstraintOptions::prepare(const std::optional<vitrine::Grammar>& grammar) {
  if (!grammar) return {};
  return std::async(std::launch::async, [grammar = *grammar] { return grammar.prepare(); });
}

bool ConstraintOptions::is_lark(std::string_view text) const {
  if (grammar.ends_with(".lark")) return true;
  return !grammar.ends_with(".gbnf") &&
         vitrine::grammar_notation(text) == vitrine::GrammarNotation::kLark;
}

void ConstraintOptions::apply(const std::optional<vitrine::Grammar>& grammar,
                              const vitrine::Tokenizer& tokenizer,
                              std::unique_ptr<vitrine::Constraint>& constraint,
                              vitrine::GenerateOptions& generation) const {
  if (!grammar) return;
  constraint = grammar->start();
  generation.constraint = constraint.get();
  if (may_jump()) generation.jump_forward = &tokenizer;
  if (!grammar->weakened().empty()) {
    write_note(
        fmt::format("warning: an answer may break the schema, of which these do not count: {}",
                    fmt::join(weakened_lines(*grammar), "; ")));
  }
  const int retries = max_retries == 0 ? kDefaultRetries : max_retries;
  if (on_deadlock != "fail") generation.deadlock_retries = retries;
  if (validate_with.empty()) return;
  generation.validator_retries = retries;
  generation.validator = [command = validate_with, &tokenizer](std::span<const int32_t> tokens) {
    AnswerText answer(tokenizer, {}, nullptr);
    std::string text;
    for (const int32_t token : tokens) text += answer.add({.token = token});
    return is_accepted_by(command, text + answer.finish());
  };
}

void ConstraintOptions::reserve_steps(vitrine::EngineOptions& options) const {
  if (!may_jump()) return;
  const int most = std::min(kJumpTokens, options.max_context);
  options.max_step_tokens = std::max(options.max_step_tokens, most);
  options.max_logit_rows = std::max(options.max_logit_rows, most);
}

std::vector<std::pair<std::string, std::string>> ConstraintOptions::description(
    bool hides_text) const {
  if (!is_given()) return {};
  std::vector<std::pair<std::string, std::string>> pairs;
  const auto text_of = [](const std::string& text) { return text.substr(0, kMaxText); };
  const auto text_pair = [&](const std::string& text) -> std::pair<std::string, std::string> {
    if (hides_text) return {"sha256", vitrine::sha256_of_text(text)};
    return {"text", text_of(text)};
  };
  const auto source_pairs = [&](const char* kind, const std::string& value, bool is_text) {
    pairs = {{"kind", kind}};
    if (is_text) {
      pairs.push_back(text_pair(value));
    } else {
      pairs.emplace_back("file", text_of(value));
      pairs.emplace_back(
          "sha256", vitrine::sha256_of_text(read_text_file(value, kConstraintOptionsMaxFileBytes)));
    }
  };
  if (!json_schema.empty()) {
    source_pairs("json-schema", json_schema, is_json_text(json_schema));
    pairs.emplace_back("format", format);
  } else if (!tags.empty()) {
    source_pairs("tags", tags, is_json_text(tags));
    pairs.emplace_back("format", format);
  } else if (tools.is_given()) {
    source_pairs("tools", tools.definitions, tools.is_text());
    pairs.emplace_back("tool_choice", tools.choice.empty() ? "auto" : text_of(tools.choice));
    pairs.emplace_back("format", format);
  } else if (!grammar.empty()) {
    source_pairs(is_lark(grammar_source(grammar).text) ? "lark" : "gbnf", grammar,
                 is_grammar_text(grammar));
  } else if (!regex.empty()) {
    pairs = {{"kind", "regex"}, text_pair(regex)};
  } else if (!choices.empty()) {
    using nlohmann::json;
    pairs = {{"kind", "choice"},
             text_pair(json(choices).dump(-1, ' ', true, json::error_handler_t::replace))};
  } else {
    pairs = {{"kind", "json-object"}};
  }
  if (json_object || !json_schema.empty() || !tags.empty() || tools.is_given())
    pairs.emplace_back("whitespace", whitespace);
  if (!json_schema.empty() || !tags.empty() || !grammar.empty() || tools.is_given())
    pairs.emplace_back("key_order", key_order);
  if (integers != "plain") pairs.emplace_back("integers", integers);
  if (close_objects) pairs.emplace_back("close_objects", "true");
  if (lenient) pairs.emplace_back("lenient", "true");
  pairs.emplace_back("jump_forward", jump_forward);
  pairs.emplace_back("on_deadlock", on_deadlock);
  if (!validate_with.empty()) pairs.emplace_back("validate_with", text_of(validate_with));
  return pairs;
}

std::string constraint_note(const vitrine::GenerateResult& result) {
  const vitrine::ConstraintCounts& counts = result.constraint;
  if (counts.masks == 0 && counts.deadlocks == 0) return "";
  std::string note = fmt::format(
      "; constraint: {} masks in {:.1f} µs each, {} forced, first choice ruled out {} times",
      counts.masks,
      1e6 * counts.mask_seconds / static_cast<double>(std::max<int64_t>(1, counts.masks)),
      counts.forced, counts.rejections);
  if (counts.jumped > 0) note += fmt::format(", {} tokens jumped over", counts.jumped);
  if (counts.limited > 0) {
    note += fmt::format(", {} narrowed by the limit of tokens", counts.limited);
  }
  if (counts.deadlocks > 0) {
    note += fmt::format(", {} deadlock{}, {} retries", counts.deadlocks,
                        counts.deadlocks == 1 ? "" : "s", counts.retries);
  }
  if (counts.rejected_answers > 0) {
    note += fmt::format(", {} answer{} rejected", counts.rejected_answers,
                        counts.rejected_answers == 1 ? "" : "s");
  }
  return note;
}

std::vector<std::string> weakened_lines(const vitrine::Grammar& grammar) {
  std::vector<std::string> lines;
  for (const vitrine::Weakening& one : grammar.weakened()) {
    lines.push_back(fmt::format("'#{}' ({})", one.pointer, one.reason));
  }
  return lines;
}

nlohmann::ordered_json weakened_json(const vitrine::Grammar& grammar) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const vitrine::Weakening& one : grammar.weakened()) {
    out.push_back({{"pointer", one.pointer}, {"reason", one.reason}});
  }
  return out;
}

nlohmann::ordered_json constraint_json(const vitrine::GenerateResult& result) {
  const vitrine::ConstraintCounts& counts = result.constraint;
  nlohmann::ordered_json failures = nlohmann::ordered_json::array();
  for (const vitrine::ConstraintFailure& one : result.failures)
    failures.push_back(failure_json(one));
  return {{"is_complete", result.is_complete},
          {"masks", counts.masks},
          {"forced", counts.forced},
          {"jumped", counts.jumped},
          {"rejections", counts.rejections},
          {"limited", counts.limited},
          {"deadlocks", counts.deadlocks},
          {"retries", counts.retries},
          {"rejected_answers", counts.rejected_answers},
          {"mask_seconds", counts.mask_seconds},
          {"failures", failures}};
}

std::string unfinished(const vitrine::GenerateResult& result) {
  if (result.reason == vitrine::StopReason::kRejected) {
    return fmt::format(
        "rejected: --validate-with accepted none of {} answers; see --max-retries, and a "
        "temperature above 0",
        result.constraint.rejected_answers);
  }
  if (result.is_complete || result.reason == vitrine::StopReason::kCancelled) return "";
  if (result.reason == vitrine::StopReason::kDeadlock) {
    const std::string others =
        result.constraint.retries == 0
            ? std::string()
            : fmt::format(", and {} answers without it were not valid", result.constraint.retries);
    return fmt::format(
        "deadlock: after {} tokens no token of the model leads on under the constraint{}; loosen "
        "the constraint, or see --on-deadlock",
        result.constraint.masks, others);
  }
  return fmt::format("the answer ended ({}) before it was what the constraint asks for; raise -n",
                     vitrine::stop_reason_name(result.reason));
}

std::string squeezed(const vitrine::GenerateResult& result) {
  if (result.reason != vitrine::StopReason::kLengthConstrained) return "";
  return "the answer is whole, but the limit of tokens took away what could have come otherwise; "
         "raise -n or the context";
}

}  // namespace cli
