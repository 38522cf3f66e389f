// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/json_text.h"
#include "evaluation/toml.h"
#include "gates/metric.h"
#include "vitrine/checkpoint.h"

namespace vitrine {

namespace {

using TomlValue = nlohmann::ordered_json;

constexpr uint64_t kMostGateBytes = uint64_t{1} << 20;
constexpr size_t kMostRules = 1000;
constexpr std::array kNextMoves = {"raise precision", "recalibrate", "change path", "roll back"};
constexpr std::array<std::pair<const char*, GateKind>, 3> kGateKinds = {
    {{"within", GateKind::kWithin},
     {"not_worse", GateKind::kNotWorse},
     {"exact", GateKind::kExact}}};
constexpr std::array kRuleFields = {"name",         "metric",     "scope",        "kind",
                                    "bound",        "confidence", "optional",     "stands_for",
                                    "next",         "except",     "beyond_noise", "never_refuses",
                                    "counted_only", "times_noise"};

template <typename Names>
std::string list_names(const Names& names) {
  std::string list;
  for (const auto& name : names) list += (list.empty() ? "" : ", ") + std::string(name);
  return list;
}

/// A table of a gate file, which says where it is when a field is wrong.
class GateTable {
 public:
  GateTable(const TomlValue& table, std::string place) : table_(table), place_(std::move(place)) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::kBadFile, place_ + ": " + what);
  }
  [[noreturn]] void refuse(const char* field, const std::string& expected) const {
    const auto found = table_.find(field);
    refuse("'" + std::string(field) + "' is " +
           (found == table_.end() ? "missing" : found_text(nlohmann::json(*found))) +
           "; expected " + expected);
  }

  bool has(const char* field) const { return table_.contains(field); }

  std::string text(const char* field, const std::string& otherwise) const {
    if (!has(field)) return otherwise;
    const TomlValue& value = table_.at(field);
    if (!value.is_string() || value.get_ref<const std::string&>().empty()) {
      refuse(field, "a text that is not empty");
    }
    return value.get<std::string>();
  }
  std::string text(const char* field) const {
    if (!has(field)) refuse(field, "a text");
    return text(field, "");
  }
  double number(const char* field) const {
    const auto value = table_.find(field);
    if (value == table_.end() || !value->is_number()) refuse(field, "a number");
    if (!std::isfinite(value->get<double>())) {
      refuse("'" + std::string(field) + "' is not finite; expected a number");
    }
    return value->get<double>();
  }
  double confidence(double otherwise) const {
    if (!has("confidence")) return otherwise;
    const double value = number("confidence");
    if (!(value >= 0.5 && value < 1)) refuse("confidence", "0.5 or more, and below 1");
    return value;
  }
  bool flag(const char* field) const {
    if (!has(field)) return false;
    if (!table_.at(field).is_boolean()) refuse(field, "true or false");
    return table_.at(field).get<bool>();
  }
  template <typename Names>
  void only(const Names& names, const std::string& expected) const {
    for (const auto& [name, value] : table_.items()) {
      if (std::ranges::find(names, name) == names.end()) {
        refuse("there is no field " + quote_text(name) + "; expected one of " + expected);
      }
    }
  }

 private:
  const TomlValue& table_;
  std::string place_;
};

GateKind read_kind(const GateTable& table, const GateMetricFacts& facts) {
  if (!table.has("kind")) return facts.is_count ? GateKind::kExact : GateKind::kWithin;
  const std::string name = table.text("kind");
  const auto* found =
      std::ranges::find_if(kGateKinds, [&](const auto& kind) { return kind.first == name; });
  if (found == kGateKinds.end()) table.refuse("kind", "within, not_worse or exact");
  if (facts.is_count && found->second != GateKind::kExact) {
    table.refuse("kind", "exact: '" + facts.name + "' counts, and nothing is inferred from it");
  }
  return found->second;
}

double read_bound(const GateTable& table, const GateMetricFacts& facts, GateKind kind) {
  if (table.has("times_noise")) {
    if (table.has("bound")) table.refuse("'bound' and 'times_noise' are there; expected one");
    if (facts.is_count || kind == GateKind::kExact) {
      table.refuse("times_noise", "none: it takes a rule of the kind within or not_worse");
    }
    return 0;
  }
  if (!table.has("bound") && (facts.is_count || kind == GateKind::kNotWorse)) return 0;
  if (!table.has("bound")) {
    table.refuse("bound", "a number (" + facts.unit + "), as '" + facts.name + "' needs it");
  }
  const double bound = table.number("bound");
  if (facts.is_count && !(bound >= 0)) table.refuse("bound", "how many items may break it");
  return bound;
}

double read_times_noise(const GateTable& table) {
  if (!table.has("times_noise")) return 0;
  const double times = table.number("times_noise");
  if (!(times >= 1)) table.refuse("times_noise", "1 or more");
  return times;
}

GateRule read_rule(const GateTable& table, double gate_confidence) {
  GateRule rule;
  rule.name = table.text("name");
  rule.metric = table.text("metric");
  const gates::Metric* metric = gates::find_metric(rule.metric);
  if (metric == nullptr) {
    std::vector<std::string> names;
    for (const GateMetricFacts& facts : gate_metrics()) names.push_back(facts.name);
    table.refuse("metric", "one of " + list_names(names));
  }
  std::vector<std::string> fields(kRuleFields.begin(), kRuleFields.end());
  fields.insert(fields.end(), metric->facts.options.begin(), metric->facts.options.end());
  table.only(fields, list_names(fields));
  rule.scope = table.text("scope", "all");
  rule.except = table.text("except", "");
  rule.kind = read_kind(table, metric->facts);
  rule.bound = read_bound(table, metric->facts, rule.kind);
  rule.times_noise = read_times_noise(table);
  rule.confidence = table.confidence(gate_confidence);
  rule.is_optional = table.flag("optional");
  rule.is_beyond_noise = table.flag("beyond_noise");
  rule.never_refuses = table.flag("never_refuses");
  rule.is_of_counted = table.flag("counted_only");
  rule.stands_for = table.text("stands_for", "");
  rule.next = table.text("next", "");
  if (!rule.next.empty() && std::ranges::find(kNextMoves, rule.next) == kNextMoves.end()) {
    table.refuse("next", "one of " + list_names(kNextMoves));
  }
  for (const std::string& option : metric->facts.options) {
    if (table.has(option.c_str())) rule.options[option] = table.number(option.c_str());
  }
  const std::string wrong = metric->check == nullptr ? "" : metric->check(rule);
  if (!wrong.empty()) table.refuse(wrong);
  return rule;
}

std::string place_of(const std::string& path, const TomlValue& table, size_t number) {
  const auto name = table.find("name");
  if (name == table.end() || !name->is_string()) {
    return path + ": [[rule]] " + std::to_string(number + 1);
  }
  return path + ": [[rule]] " + quote_text(name->get_ref<const std::string&>());
}

/// Rules that stand for another one are known by then, and so are their names.
void check_stand_ins(const GateFile& gate) {
  for (const GateRule& rule : gate.rules) {
    if (rule.stands_for.empty()) continue;
    const auto place = gate.path + ": [[rule]] " + quote_text(rule.name) + ": 'stands_for' is " +
                       quote_text(rule.stands_for);
    const auto other = std::ranges::find(gate.rules, rule.stands_for, &GateRule::name);
    if (other == gate.rules.end() || &*other == &rule) {
      throw Error(ErrorKind::kBadFile, place + "; expected the name of another rule");
    }
    if (!other->stands_for.empty()) {
      throw Error(ErrorKind::kBadFile, place +
                                           ", which stands for another rule itself; expected "
                                           "one that does not");
    }
    if (rule.kind != GateKind::kWithin || other->kind != GateKind::kWithin) {
      throw Error(ErrorKind::kBadFile,
                  place + "; expected both of the kind within, which alone can be undecided");
    }
  }
}

}  // namespace

GateFile GateFile::parse(const std::string& text, const std::string& path) {
  const TomlValue file = evaluation::parse_toml(text, path);
  GateTable(file, path).only(std::array{"gate", "rule"}, "[gate] and [[rule]]");
  if (!file.contains("gate") || !file["gate"].is_object()) {
    throw Error(ErrorKind::kBadFile, path + ": 'gate' is not a table; expected [gate] with a name");
  }
  const GateTable head(file["gate"], path + ": [gate]");
  head.only(std::array{"name", "about", "confidence"}, "name, about, confidence");
  GateFile gate;
  gate.path = path;
  gate.text = text;
  gate.sha256 = sha256_of_text(text);
  gate.name = head.text("name");
  gate.about = head.text("about", "");
  gate.confidence = head.confidence(gate.confidence);
  if (!file.contains("rule") || !file["rule"].is_array() || file["rule"].empty() ||
      file["rule"].size() > kMostRules) {
    throw Error(ErrorKind::kBadFile, path + ": 'rule' is not a list of tables; expected 1 to " +
                                         std::to_string(kMostRules) + " times [[rule]]");
  }
  std::set<std::string> names;
  for (const TomlValue& table : file["rule"]) {
    if (!table.is_object()) {
      throw Error(ErrorKind::kBadFile, path + ": [[rule]] " + std::to_string(names.size() + 1) +
                                           " is no table; expected [[rule]]");
    }
    const GateTable place(table, place_of(path, table, names.size()));
    gate.rules.push_back(read_rule(place, gate.confidence));
    if (!names.insert(gate.rules.back().name).second) {
      place.refuse("the name stands twice; expected each once");
    }
  }
  check_stand_ins(gate);
  return gate;
}

GateFile GateFile::open(const std::string& path) {
  const std::vector<std::string> names = builtin_gates();
  if (std::ranges::find(names, path) != names.end()) return parse(builtin_gate_text(path), path);
  if (!std::filesystem::exists(path)) {
    throw Error(ErrorKind::kInvalidArgument,
                path +
                    ": there is no such file; expected a gate file, or one of the built-in "
                    "gates " +
                    list_names(names));
  }
  return parse(read_text_file(path, kMostGateBytes), path);
}

}  // namespace vitrine
