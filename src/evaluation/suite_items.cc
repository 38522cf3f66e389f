// SPDX-License-Identifier: Apache-2.0
#include "evaluation/suite_items.h"

#include <algorithm>
#include <set>

#include "core/json_text.h"
#include "core/utf8.h"
#include "evaluation/fields.h"
#include "vitrine/checkpoint.h"

namespace vitrine::evaluation {

namespace {

constexpr size_t kMostLineBytes = size_t{8} << 20;
constexpr size_t kMostValues = 200'000;
constexpr size_t kMostKeys = 4096;
constexpr size_t kMostItems = 200'000;
constexpr size_t kMostIdBytes = 200;

void check_id(const std::string& id, const std::string& where) {
  const bool is_plain = std::ranges::none_of(
      id, [](char byte) { return static_cast<uint8_t>(byte) < 0x20 || byte == 0x7F; });
  if (id.empty() || id.size() > kMostIdBytes || !is_plain) {
    throw_field(where, "'id' is " + quote_text(id) + "; expected 1 to " +
                           std::to_string(kMostIdBytes) + " bytes without control characters");
  }
}

Item read_item(std::string_view line, const std::string& where) {
  if (line.size() > kMostLineBytes) {
    throw_field(where, "an item of " + std::to_string(line.size()) + " bytes; expected at most " +
                           std::to_string(kMostLineBytes));
  }
  if (!is_utf8(line)) throw_field(where, "bytes that are no UTF-8; expected UTF-8");
  check_json(line, where, kMostValues, kMostKeys);
  Item item;
  item.data = Json::parse(line.begin(), line.end());
  if (!item.data.is_object()) {
    throw_field(where, "found " + found_text(nlohmann::json(item.data)) +
                           "; expected a JSON object, an item");
  }
  item.id = text_field(item.data, where, "id");
  check_id(item.id, where);
  item.group = text_field(item.data, where, "group", "");
  item.is_critical = flag_field(item.data, where, "critical", false);
  for (const char* name : {"id", "group", "critical"}) item.data.erase(name);
  return item;
}

bool is_name_character(char byte) { return (byte >= 'a' && byte <= 'z') || byte == '_'; }

/// The end of "{name" at `open`, or `open` where no name stands there.
size_t name_end(std::string_view text, size_t open) {
  size_t end = open + 1;
  while (end < text.size() && is_name_character(text[end])) ++end;
  return end > open + 1 && end < text.size() && text[end] == '}' ? end : open;
}

std::string filled_field(const Json& data, const std::string& name, const std::string& where) {
  const Json* found = find_field(data, name);
  if (found != nullptr && found->is_string()) return found->get<std::string>();
  if (found != nullptr && found->is_number()) return found->dump();
  throw_field(where, field_problem(name, found, "a text or a number, which the template names"));
}

/// Replaces each {name} by the item's field.
std::string fill_template(std::string_view text, const Json& data, const std::string& where) {
  std::string filled;
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t end = text[i] == '{' ? name_end(text, i) : i;
    if (end == i) {
      filled += text[i];
    } else {
      filled += filled_field(data, std::string(text.substr(i + 1, end - i - 1)), where);
      i = end;
    }
  }
  return filled;
}

void add_names(std::string_view text, std::vector<std::string>& names) {
  for (size_t i = 0; i < text.size(); ++i) {
    const size_t end = text[i] == '{' ? name_end(text, i) : i;
    if (end != i) names.emplace_back(text.substr(i + 1, end - i - 1));
  }
}

/// Fields that an item of a task may have.
std::vector<std::string> item_fields(const Task& task, const Scorer* scorer) {
  std::vector<std::string> names = {"prompt", "plain_prompt", "messages", "answer_start",
                                    "tools",  "schema",       "answer",   "reference",
                                    "note",   "length",       "depth"};
  if (task.told.kind == TaskKind::kChoice) names.emplace_back("choices");
  if (task.told.kind == TaskKind::kText) names = {"text", "scored_from", "note", "length"};
  if (scorer != nullptr) {
    names.insert(names.end(), scorer->item_fields.begin(), scorer->item_fields.end());
  }
  for (const char* name : {"template", "text_template"}) {
    if (const Json* text = find_field(task.options, name)) {
      add_names(text->get_ref<const std::string&>(), names);
    }
  }
  return names;
}

void check_text(const Item& item, const std::string& where) {
  const std::string text = text_field(item.data, where, "text");
  if (text.empty()) throw_field(where, "'text' is empty; expected a text");
  const int64_t from = whole_field(item.data, where, "scored_from", 0, INT64_MAX, 0);
  const bool is_within = static_cast<uint64_t>(from) < text.size();
  if (!is_within || is_continuation(text[static_cast<size_t>(from)])) {
    throw_field(where, "'scored_from' is " + std::to_string(from) +
                           "; expected the beginning of one of the text's " +
                           std::to_string(text.size()) + " bytes, of a character");
  }
}

void check_choices(const Item& item, const std::string& where) {
  const Json* choices = find_field(item.data, "choices");
  if (choices == nullptr || !choices->is_array() || choices->size() < 2) {
    throw_field(where, field_problem("choices", choices, "a list of at least two texts"));
  }
  std::set<std::string> seen;
  for (const std::string& choice : texts_field(item.data, where, "choices")) {
    if (choice.empty()) throw_field(where, "'choices' has an empty text; expected a text");
    if (!seen.insert(choice).second) {
      throw_field(where, "'choices' has " + quote_text(choice) + " twice; expected it once");
    }
  }
  whole_field(item.data, where, "answer", 0, static_cast<int64_t>(choices->size()) - 1);
}

void check_asked(const Item& item, const std::string& where) {
  const Json* messages = find_field(item.data, "messages");
  if (messages != nullptr && find_field(item.data, "prompt") != nullptr) {
    throw_field(where, "both 'prompt' and 'messages'; expected one of them");
  }
  if (messages == nullptr) {
    if (text_field(item.data, where, "prompt").empty()) {
      throw_field(where, "'prompt' is empty; expected a text");
    }
  } else if (!messages->is_array() || messages->empty()) {
    throw_field(where, field_problem("messages", messages, "a list of messages, at least one"));
  } else {
    for (const Json& message : *messages) {
      if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
        throw_field(where, "'messages' has " + found_text(nlohmann::json(message)) +
                               "; expected objects with a 'role'");
      }
    }
  }
  for (const char* name : {"plain_prompt", "answer_start", "reference", "note"}) {
    text_field(item.data, where, name, "");
  }
  const Json* tools = find_field(item.data, "tools");
  if (tools != nullptr && !(tools->is_array() && !tools->empty())) {
    throw_field(where, field_problem("tools", tools, "a list of tools, at least one"));
  }
  const Json* schema = find_field(item.data, "schema");
  if (schema != nullptr && !schema->is_object()) {
    throw_field(where, field_problem("schema", schema, "a JSON Schema, an object"));
  }
}

/// A task that holds answers to something needs it in each item.
void check_constraint(const Task& task, const Item& item, const std::string& where) {
  const std::string constrain = text_field(task.options, where, "constrain", "none");
  if (constrain == "none") return;
  const std::string wanted = constrain == "schema" ? "schema" : "tools";
  if (find_field(item.data, wanted) == nullptr) {
    throw_field(where, field_problem(wanted, nullptr,
                                     "it, for the task has constrain = \"" + constrain + "\""));
  }
}

void check_item(const Task& task, const Item& item, const Scorer* scorer,
                const std::string& where) {
  // Makers write down what templates may name.
  if (item.line != 0) check_names(item.data, where, item_fields(task, scorer));
  if (task.told.kind == TaskKind::kText) return check_text(item, where);
  check_asked(item, where);
  if (task.told.kind == TaskKind::kChoice) return check_choices(item, where);
  check_constraint(task, item, where);
  std::string problem;
  try {
    problem = scorer->check(item, task.options);
  } catch (const Error& error) {
    problem = error.what();
  }
  if (!problem.empty()) throw_field(where, problem);
}

void fill_prompts(const Task& task, Item& item, const std::string& where) {
  const std::pair<const char*, const char*> kTemplates[] = {{"template", "prompt"},
                                                            {"text_template", "plain_prompt"}};
  for (const auto& [from, to] : kTemplates) {
    const Json* text = find_field(task.options, from);
    if (text != nullptr) {
      item.data[to] = fill_template(text->get_ref<const std::string&>(), item.data, where);
    }
  }
}

void mark_critical(Task& task, const std::string& file) {
  for (const std::string& id : texts_field(task.options, file, "critical")) {
    const auto found = std::ranges::find(task.items, id, &Item::id);
    if (found == task.items.end()) {
      throw_field(file, "'critical' names " + quote_text(id) + "; expected the id of an item");
    }
    found->is_critical = true;
  }
}

}  // namespace

std::vector<Item> read_items(std::string_view text, const std::string& file) {
  std::vector<Item> items;
  std::map<std::string, size_t> lines;  // where each id stands
  size_t number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string where = file + ": line " + std::to_string(number);
    items.push_back(read_item(line, where));
    items.back().line = number;
    const auto [first, is_new] = lines.emplace(items.back().id, number);
    if (!is_new) {
      throw_field(where, "the id " + quote_text(items.back().id) + " stands in line " +
                             std::to_string(first->second) + " too; expected each once");
    }
    if (items.size() > kMostItems) {
      throw_field(where, "more than " + std::to_string(kMostItems) + " items; expected fewer");
    }
  }
  if (items.empty()) throw_field(file, "no item; expected one a line");
  return items;
}

void finish_items(Task& task, const std::string& file) {
  mark_critical(task, file);
  const Scorer* scorer =
      task.told.kind == TaskKind::kAnswer ? find_scorer(task.told.scorer) : nullptr;
  for (Item& item : task.items) {
    const std::string place = item.line == 0 ? "" : ": line " + std::to_string(item.line);
    const std::string where = file + place + ": item " + quote_text(item.id);
    fill_prompts(task, item, where);
    check_item(task, item, scorer, where);
  }
}

void choose_items(Task& task, uint64_t seed, size_t count) {
  if (task.items.size() <= count) return;
  std::vector<std::pair<std::string, size_t>> order;  // critical ones first
  for (size_t i = 0; i < task.items.size(); ++i) {
    const Item& item = task.items[i];
    order.emplace_back(
        (item.is_critical ? "0" : "1") +
            sha256_of_text(std::to_string(seed) + "\n" + task.told.name + "\n" + item.id),
        i);
  }
  std::ranges::sort(order);
  order.resize(count);
  std::ranges::sort(order, {}, [](const auto& entry) { return entry.second; });
  std::vector<Item> chosen;
  for (const auto& [key, place] : order) chosen.push_back(std::move(task.items[place]));
  task.items = std::move(chosen);
}

}  // namespace vitrine::evaluation
