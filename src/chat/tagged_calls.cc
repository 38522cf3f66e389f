// SPDX-License-Identifier: Apache-2.0
// What the texts of calls have in common.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "tagged_output.h"

namespace vitrine::chat {

namespace {

using Json = nlohmann::json;

constexpr std::string_view kCallSpace = " \t\r\n";

size_t find_string_end(std::string_view text, size_t at) {
  for (++at; at < text.size(); ++at) {
    if (text[at] == '"') return at + 1;
    if (text[at] == '\\') ++at;
  }
  return text.npos;
}

/// What a JSON text means.
std::string read_json_text(std::string_view text) {
  const Json json = Json::parse(text, nullptr, false);
  return json.is_string() ? json.get<std::string>() : std::string(text);
}

/// An object from its opening bracket on.
class CallObject {
 public:
  explicit CallObject(CallText& text, bool is_inner = false) : text_(text), is_inner_(is_inner) {}

  bool read(ToolCall& call) {
    if (!text_.take("{")) return false;
    text_.skip_space();
    while (!text_.take("}")) {
      if (text_.is_short() || !read_member(call)) return false;
      text_.skip_space();
      if (text_.take(",")) {
        text_.skip_space();
      } else if (!text_.rest().starts_with('}')) {
        text_.take("}");  // for is_short()
        return false;
      }
    }
    if (!has_arguments_) call.arguments = "{}";
    return has_name_;
  }

 private:
  bool read_member(ToolCall& call) {
    std::string_view name, value;
    if (!text_.rest().starts_with('"') || !take_value(name)) return false;
    text_.skip_space();
    if (!text_.take(":")) return false;
    text_.skip_space();
    if (name == "\"function\"" && text_.rest().starts_with('{') && !has_name_ && !is_inner_) {
      CallObject inner(text_, true);
      if (!inner.read(call)) return false;
      has_name_ = has_arguments_ = true;
      return true;
    }
    if (!take_value(value)) return false;
    const bool is_text = value.starts_with('"');
    if (name == "\"name\"" && is_text && !has_name_) {
      call.name = read_json_text(value);
      has_name_ = true;
    } else if ((name == "\"arguments\"" || name == "\"parameters\"") && !has_arguments_) {
      call.arguments = is_text ? read_json_text(value) : std::string(value);
      has_arguments_ = true;
    } else if (name == "\"id\"" && is_text && call.id.empty()) {
      call.id = read_json_text(value);
    } else if (name != "\"type\"" || value != "\"function\"") {
      return false;
    }
    return true;
  }

  bool take_value(std::string_view& value) {
    const size_t end = find_json_end(text_.rest(), 0);
    if (end == std::string_view::npos) {
      text_.mark_short();
      return false;
    }
    value = text_.rest().substr(0, end);
    if (!is_json(value)) return false;
    text_.remove(end);
    return true;
  }

  CallText& text_;
  const bool is_inner_;
  bool has_name_ = false, has_arguments_ = false;
};

}  // namespace

size_t find_json_end(std::string_view text, size_t at) {
  if (at >= text.size()) return text.npos;
  if (text[at] == '"') return find_string_end(text, at);
  if (text[at] != '{' && text[at] != '[') {
    return text.find_first_of(",]} \t\r\n", at);
  }
  for (size_t depth = 0; at < text.size();) {
    if (text[at] == '"') {
      at = find_string_end(text, at);
      continue;
    }
    if (text[at] == '{' || text[at] == '[') ++depth;
    if ((text[at] == '}' || text[at] == ']') && --depth == 0) return at + 1;
    ++at;
  }
  return text.npos;
}

bool is_json(std::string_view text) { return Json::accept(text); }

CallRead read_json_calls(std::string_view text, const ToolTypes&, std::vector<ToolCall>& calls) {
  CallText rest(text);
  rest.skip_space();
  const bool is_list = rest.take("[");
  for (bool is_first = true;; is_first = false) {
    rest.skip_space();
    if (is_list && rest.take("]")) break;
    if (!is_first && !rest.take(",")) return rest.failure();
    rest.skip_space();
    ToolCall call;
    if (!CallObject(rest).read(call)) return rest.failure();
    calls.push_back(std::move(call));
    if (!is_list) break;
  }
  rest.skip_space();
  return rest.at_end() && !calls.empty() ? CallRead::kCalls : CallRead::kNoCall;
}

std::string_view CallText::after_space() const {
  return text_.substr(std::min(text_.find_first_not_of(kCallSpace), text_.size()));
}

bool CallText::take(std::string_view literal) {
  if (text_.starts_with(literal)) {
    text_.remove_prefix(literal.size());
    return true;
  }
  is_short_ = is_short_ || literal.starts_with(text_);
  return false;
}

bool CallText::take_until(std::string_view literal, std::string_view& found) {
  return take_until(literal, {}, found);
}

bool CallText::take_until(std::string_view literal, std::span<const std::string_view> next,
                          std::string_view& found) {
  for (size_t at = text_.find(literal); at != text_.npos; at = text_.find(literal, at + 1)) {
    const CallText behind(text_.substr(at + literal.size()));
    const std::string_view follows = behind.after_space();
    const bool fits =
        next.empty() || follows.empty() ||
        std::ranges::any_of(next, [&](std::string_view one) { return follows.starts_with(one); });
    if (!fits) continue;
    found = text_.substr(0, at);
    text_.remove_prefix(at + literal.size());
    return true;
  }
  is_short_ = true;
  return false;
}

struct ToolTypes::Tables {
  /// Function → argument → the JSON types that its schema allows.
  std::map<std::string, std::map<std::string, std::set<std::string>>, std::less<>> functions;
};

namespace {

constexpr int kMaxSchemaDepth = 16;

Json member(const Json& json, const char* name) {
  return json.is_object() && json.contains(name) ? json[name] : Json();
}

/// A value's type as schemas name it; whole numbers are integers.
std::string type_of(const Json& value) {
  return value.is_number_integer() ? "integer" : value.type_name();
}

/// The types that a schema allows; none where it leaves them open.
std::set<std::string> types_of(const Json& schema, int depth = 0) {
  std::set<std::string> types;
  const auto list = [&](const char* name) {
    const Json found = member(schema, name);
    return found.is_array() ? found : Json::array();
  };
  const Json type = member(schema, "type");
  if (type.is_string()) types.insert(type.get<std::string>());
  for (const Json& name : list("type")) {
    if (name.is_string()) types.insert(name.get<std::string>());
  }
  if (types.empty()) {
    for (const Json& value : list("enum")) types.insert(type_of(value));
    if (schema.is_object() && schema.contains("const")) types.insert(type_of(schema["const"]));
  }
  for (const char* choice : {"anyOf", "oneOf"}) {
    if (!types.empty() || depth == kMaxSchemaDepth) break;
    for (const Json& one : list(choice)) {
      const std::set<std::string> own = types_of(one, depth + 1);
      if (own.empty()) return {};
      types.insert(own.begin(), own.end());
    }
  }
  // OpenAPI's spelling.
  if (!types.empty() && member(schema, "nullable") == true) types.insert("null");
  return types;
}

/// Whether a JSON text is a value of one of the types.
bool is_one_of(std::string_view json, const std::set<std::string>& types) {
  const Json value = Json::parse(json, nullptr, false);
  return types.contains(type_of(value)) || (value.is_number() && types.contains("number"));
}

}  // namespace

ToolTypes::ToolTypes(std::string_view tools_json) {
  auto tables = std::make_unique<Tables>();
  if (!trim_space(tools_json).empty()) {
    const Json tools = Json::parse(tools_json, nullptr, false);
    if (!tools.is_array()) {
      throw Error(ErrorKind::kInvalidArgument,
                  "the tools of a conversation are no JSON array; expected a list of functions");
    }
    for (const Json& tool : tools) {
      const Json function = member(tool, "function").is_object() ? member(tool, "function") : tool;
      const Json name = member(function, "name");
      const Json properties = member(member(function, "parameters"), "properties");
      if (!name.is_string() || !properties.is_object()) continue;
      for (const auto& [argument, schema] : properties.items()) {
        tables->functions[name.get<std::string>()][argument] = types_of(schema);
      }
    }
  }
  tables_ = std::move(tables);
}

ToolTypes::~ToolTypes() = default;

std::string ToolTypes::argument(std::string_view function, std::string_view name,
                                std::string_view text) const {
  std::set<std::string> types;
  const auto found = tables_->functions.find(function);
  if (found != tables_->functions.end()) {
    const auto entry = found->second.find(std::string(name));
    if (entry != found->second.end()) types = entry->second;
  }
  std::string_view bare = trim_space(text);
  // As Python writes them: templates do, and so do models.
  constexpr std::pair<std::string_view, std::string_view> kPython[] = {
      {"True", "true"}, {"False", "false"}, {"None", "null"}};
  for (const auto& [python, json] : kPython) {
    if (bare == python) bare = json;
  }
  const bool is_value = !bare.starts_with('"') && is_json(bare);
  // Where a text is allowed, too, what reads as another value is that only if it is one allowed.
  if (is_value && (!types.contains("string") || is_one_of(bare, types))) return std::string(bare);
  return json_text(text);
}

}  // namespace vitrine::chat
