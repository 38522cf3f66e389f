// SPDX-License-Identifier: Apache-2.0
#include "evaluation/scorers/called_tools.h"

#include <algorithm>

#include "evaluation/scorers/reading.h"
#include "vitrine/chat_output.h"

namespace vitrine::evaluation {

namespace {

CalledTool called_tool(const ToolCall& call) {
  CalledTool tool{call.name, Json::object(), true};
  const std::optional<Json> arguments = parse_answer_json(call.arguments);
  tool.is_read = arguments && arguments->is_object();
  if (tool.is_read) tool.arguments = *arguments;
  return tool;
}

void add_written_call(const Json& value, std::vector<CalledTool>& calls) {
  if (!value.is_object()) return;
  const Json* name = find_field(value, "name");
  const Json* arguments = find_field(value, "arguments");
  if (arguments == nullptr) arguments = find_field(value, "parameters");
  if (name == nullptr || !name->is_string() || arguments == nullptr) return;
  const bool is_read = arguments->is_object();
  calls.push_back({name->get<std::string>(), is_read ? *arguments : Json::object(), is_read});
}

/// Calls that a text writes as JSON: alone, in a list, or one behind the other, so that a call that
/// must not be made is seen behind another.
std::vector<CalledTool> written_calls(const std::string& text) {
  std::vector<Json> values = find_all_json(text);
  if (values.empty()) {
    if (std::optional<FoundJson> found = find_json(text)) values.push_back(std::move(found->value));
  }
  std::vector<CalledTool> calls;
  for (const Json& value : values) {
    if (!value.is_array()) add_written_call(value, calls);
    if (value.is_array()) {
      for (const Json& entry : value) add_written_call(entry, calls);
    }
  }
  return calls;
}

std::string plain_text(const std::string& text) {
  std::string plain = fold_case(text);
  std::erase_if(plain, [](char byte) {
    return std::string_view(" ,./-_*^").find(byte) != std::string_view::npos;
  });
  std::ranges::replace(plain, '\'', '"');
  return plain;
}

bool is_equal_argument(const Json& value, const Json& right);

/// Each key's value is among the right ones, and none is missing that may not be.
bool is_right_object(const Json& value, const Json& rights) {
  for (const auto& [name, entry] : value.items()) {
    if (!rights.contains(name) || !is_right_argument(entry, rights[name])) return false;
  }
  return std::ranges::all_of(rights.items(), [&](const auto& entry) {
    const Json& allowed = entry.value();
    return value.contains(entry.key()) ||
           (allowed.is_array() && std::ranges::find(allowed, Json("")) != allowed.end());
  });
}

bool is_equal_argument(const Json& value, const Json& right) {
  if (value.is_string() && right.is_string()) {
    return plain_text(value.get<std::string>()) == plain_text(right.get<std::string>());
  }
  if (value.is_array() && right.is_array()) {
    return std::ranges::equal(value, right, is_equal_argument);
  }
  if (value.is_object() && right.is_object()) return is_right_object(value, right);
  return are_equal_values(value, right);
}

bool is_of_type(const Json& value, const Json& parameter, const Json& rights) {
  const Json* type = find_field(parameter, "type");
  const Json* items = find_field(parameter, "items");
  // A function that takes an integer may well fail on 2.0, which JSON Schema calls one.
  const bool is_broken = type != nullptr && *type == "integer" && value.is_number_float();
  const bool fits = !is_broken && (type == nullptr || !type->is_string() ||
                                   has_json_type(value, type->get<std::string>()));
  const bool has_fitting_items = !value.is_array() || items == nullptr || !items->is_object() ||
                                 std::ranges::all_of(value, [&](const Json& entry) {
                                   return is_of_type(entry, *items, Json::array());
                                 });
  if (fits && has_fitting_items) return true;
  // A variable's name in a value's place is right where the possible answers have such a text.
  return std::ranges::any_of(rights, [&](const Json& right) {
    if (right.is_array()) return value.is_array() && is_equal_argument(value, right);
    return right != "" && right.type() == value.type();
  });
}

}  // namespace

bool is_right_argument(const Json& value, const Json& rights) {
  if (!rights.is_array()) return is_equal_argument(value, rights);
  return std::ranges::any_of(rights,
                             [&](const Json& right) { return is_equal_argument(value, right); });
}

const Json* find_parameters(const Json& tools, const std::string& name) {
  static const Json none = Json::object();
  for (const Json& tool : tools) {
    const Json* function = find_field(tool, "function");
    const Json& definition = function == nullptr ? tool : *function;
    if (definition.value("name", "") != name) continue;
    const Json* parameters = find_field(definition, "parameters");
    return parameters == nullptr ? &none : parameters;
  }
  return nullptr;
}

CalledTools called_tools(const ScoredAnswer& answer, const std::string& text) {
  CalledTools found;
  for (const ToolCall& call : answer.answer.parts.tool_calls) {
    found.calls.push_back(called_tool(call));
  }
  if (!found.calls.empty()) return found;
  ChatOutputParser parser("hermes");
  parser.add(text);
  parser.finish();
  for (const ToolCall& call : parser.answer().tool_calls) found.calls.push_back(called_tool(call));
  if (found.calls.empty()) found.calls = written_calls(text);
  found.has_form = found.calls.empty();
  return found;
}

CallShares call_shares(const CalledTool& call, const Json& right, const Json& parameters) {
  CallShares shares;
  const std::string& name = right.begin().key();
  const Json& rights = right.begin().value();
  shares.is_name_right = call.name == name;
  if (!shares.is_name_right) return shares;
  const Json required = parameters.value("required", Json::array());
  for (const auto& [argument, allowed] : rights.items()) {
    const bool may_miss = std::ranges::find(allowed, Json("")) != allowed.end() &&
                          std::ranges::find(required, Json(argument)) == required.end();
    if (call.arguments.contains(argument)) {
      shares.values.add(is_right_argument(call.arguments[argument], allowed));
    } else if (!may_miss) {
      shares.values.add(false);
    }
    if (!may_miss) shares.arguments.add(call.arguments.contains(argument));
  }
  const Json properties = parameters.value("properties", Json::object());
  for (const auto& [argument, value] : call.arguments.items()) {
    if (!rights.contains(argument)) {
      shares.arguments.add(false);
    } else {
      shares.types.add(
          is_of_type(value, properties.value(argument, Json::object()), rights[argument]));
    }
  }
  if (!call.is_read) shares.arguments.add(false);
  return shares;
}

}  // namespace vitrine::evaluation
