// SPDX-License-Identifier: Apache-2.0
// vitrine constrain check: does a schema compile, and which instances does it accept.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "common.h"
#include "constraint_options.h"
#include "failure_text.h"
#include "text_file.h"
#include "vitrine/constrain.h"

namespace cli {

namespace {

constexpr size_t kConstrainMaxFileBytes = size_t{256} << 20;

struct ConstrainArguments {
  std::string schema, format = "assert", whitespace = "rfc", key_order = "any", integers = "any";
  std::vector<std::string> instances;
  bool json = false, lenient = false, close_objects = false;
};

vitrine::TokenTable table_of_bytes() {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  return vitrine::TokenTable::from_bytes(std::move(bytes), {});
}

/// The keywords of a schema and its subschemas; what stands in values and names is none.
void collect_features(const nlohmann::json& schema, std::set<std::string>& features) {
  if (schema.is_array()) {
    for (const auto& part : schema) collect_features(part, features);
  }
  if (!schema.is_object()) return;
  for (const auto& [name, value] : schema.items()) {
    static const std::set<std::string> kNoFeatures = {
        "$schema", "$id",      "id",         "$comment", "title",    "description",
        "default", "examples", "deprecated", "readOnly", "writeOnly"};
    static const std::set<std::string> kByName = {
        "properties",  "patternProperties", "$defs",
        "definitions", "dependentSchemas",  "dependencies"};
    if (kNoFeatures.contains(name)) continue;
    features.insert(name == "format" && value.is_string() ? "format " + value.get<std::string>()
                                                          : name);
    if (name == "enum" || name == "const") continue;
    if (kByName.contains(name) && value.is_object()) {
      for (const auto& [key, part] : value.items()) collect_features(part, features);
    } else {
      collect_features(value, features);
    }
  }
}

struct ConstraintVerdict {
  bool accepted = false;
  vitrine::ConstraintState state;  // where it was refused
};

ConstraintVerdict judge(const vitrine::Grammar& grammar, const std::string& text) {
  const auto constraint = grammar.start();
  const bool goes_through = std::ranges::all_of(
      text, [&](char byte) { return constraint->accept(static_cast<uint8_t>(byte)); });
  if (goes_through && constraint->is_complete()) return {true, {}};
  return {false, constraint->state()};
}

int run_check(const ConstrainArguments& arguments) {
  // What others wrote is judged: by default every spelling counts.
  vitrine::SchemaOptions options = vitrine::SchemaOptions::every_spelling();
  if (arguments.format == "annotate") options.format = vitrine::JsonFormat::kAnnotate;
  if (arguments.whitespace == "one-line") options.whitespace = vitrine::JsonWhitespace::kOneLine;
  if (arguments.whitespace == "compact") options.whitespace = vitrine::JsonWhitespace::kCompact;
  options.lenient = arguments.lenient;
  options.key_order = key_order_of(arguments.key_order);
  options.integers = integers_of(arguments.integers);
  options.close_objects = arguments.close_objects;
  const std::string schema = read_text_file(arguments.schema, kConstrainMaxFileBytes);
  const auto grammar = [&] {
    try {
      return vitrine::Grammar::json_schema(table_of_bytes(), schema, options);
    } catch (const vitrine::Error& error) {
      throw vitrine::Error(error.kind(), arguments.schema + ": " + error.what());
    }
  }();
  std::set<std::string> features;
  collect_features(nlohmann::json::parse(schema, nullptr, false), features);
  nlohmann::ordered_json json;
  json["schema"] = arguments.schema;
  json["compiles"] = true;
  json["features"] = features;
  if (arguments.lenient) json["weakened"] = weakened_json(grammar);
  json["instances"] = nlohmann::ordered_json::array();
  std::string plain = fmt::format("{}: compiles\n", arguments.schema);
  for (const std::string& line : weakened_lines(grammar)) {
    plain += fmt::format("does not count: {}\n", line);
  }
  if (!features.empty()) plain += fmt::format("features: {}\n", fmt::join(features, ", "));
  bool all = true;
  for (const std::string& path : arguments.instances) {
    const ConstraintVerdict verdict = judge(grammar, read_text_file(path, kConstrainMaxFileBytes));
    all = all && verdict.accepted;
    nlohmann::ordered_json& entry = json["instances"].emplace_back();
    entry["instance"] = path;
    entry["accepted"] = verdict.accepted;
    if (verdict.accepted) {
      plain += fmt::format("{}: accepted\n", path);
      continue;
    }
    entry["byte"] = verdict.state.num_bytes;
    entry["allowed"] = verdict.state.next_bytes;
    entry["readings"] = verdict.state.readings;
    entry["completion"] = verdict.state.completion;
    plain += fmt::format("{}: refused at byte {}\n", path, verdict.state.num_bytes) +
             state_text(verdict.state, "  ");
  }
  const vitrine::Grammar::Statistics statistics = grammar.statistics();
  json["states"] = statistics.states;
  json["rows"] = statistics.rows;
  json["values"] = statistics.values;
  json["shapes"] = statistics.shapes;
  if (arguments.json) {
    write_json(json);
  } else {
    write_out(plain);
  }
  return all ? 0 : 1;
}

}  // namespace

void add_constrain(CLI::App& app, Command& command) {
  CLI::App* constrain = app.add_subcommand("constrain", "Schemas that an answer must satisfy");
  constrain->require_subcommand(1);
  auto arguments = std::make_shared<ConstrainArguments>();
  CLI::App* check = constrain->add_subcommand(
      "check", "Compiles a JSON Schema and says which instances it accepts (exit code 1: not all)");
  check->add_option("schema", arguments->schema, "JSON file of the schema")->required();
  check->add_option("--instance", arguments->instances, "JSON files to judge");
  check->add_option("--format", arguments->format, "what `format` means")
      ->check(CLI::IsMember({"assert", "annotate"}))
      ->capture_default_str();
  check->add_option("--whitespace", arguments->whitespace, "white space between the parts of JSON")
      ->check(CLI::IsMember({"rfc", "one-line", "compact"}))
      ->capture_default_str();
  add_key_order(*check, arguments->key_order);
  add_integers(*check, arguments->integers);
  add_close_objects(*check, arguments->close_objects);
  check->add_flag("--lenient", arguments->lenient,
                  "leave out what cannot be kept exactly, and say what that is");
  check->add_flag("--json", arguments->json, "one JSON object instead of lines");
  check->callback(
      [arguments, &command] { command = [arguments] { return run_check(*arguments); }; });
}

}  // namespace cli
