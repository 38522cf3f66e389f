// SPDX-License-Identifier: Apache-2.0
#include "vitrine/chat_tools.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "call_tags.h"
#include "closed_schema.h"
#include "core/json_text.h"
#include "output_format.h"

namespace vitrine {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kMaxToolsBytes = size_t{16} << 20;
constexpr int kMaxToolsDepth = 200;
constexpr size_t kMaxFunctionName = 128;
constexpr size_t kMaxShownJson = 60;
constexpr size_t kMaxObjectKeys = 1024;
constexpr const char* kNoArguments =
    R"({"type": "object", "properties": {}, "additionalProperties": false})";

std::string shown_json(const OrderedJson& json) {
  const std::string text = json.dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
  return text.size() > kMaxShownJson ? text.substr(0, kMaxShownJson) + "…" : text;
}

/// JSON of a bounded depth; discarded where it is none. What watches a parser makes it slow, so the
/// text is gone through before.
OrderedJson parse_bounded(std::string_view text, bool& is_too_deep) {
  const JsonBounds bounds = json_bounds(text, kMaxToolsDepth, kMaxObjectKeys);
  is_too_deep = bounds == JsonBounds::kTooDeep;
  if (bounds != JsonBounds::kFits) return OrderedJson::value_t::discarded;
  return OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
}

bool is_function_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxFunctionName && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("_-.:/").find(c) != std::string_view::npos;
  });
}

/// Reads the definitions of a file.
class ToolsReader {
 public:
  explicit ToolsReader(const std::string& name) : name_(name) {}

  std::pair<OrderedJson, std::vector<ToolFunction>> read(std::string_view text) {
    if (text.size() > kMaxToolsBytes) {
      throw Error(ErrorKind::kBadFile, name_ + ": has " + std::to_string(text.size()) +
                                           " bytes; expected at most " +
                                           std::to_string(kMaxToolsBytes));
    }
    bool is_too_deep = false;
    const OrderedJson given = parse_bounded(text, is_too_deep);
    if (is_too_deep) {
      throw Error(ErrorKind::kBadFile, name_ + ": is nested deeper than " +
                                           std::to_string(kMaxToolsDepth) +
                                           " levels; expected definitions of functions");
    }
    if (given.is_discarded()) {
      throw Error(ErrorKind::kBadFile,
                  name_ + ": is no JSON; expected an array of definitions of functions");
    }
    if (!given.is_array() || given.empty()) {
      fail("", given, "an array with at least one definition of a function");
    }
    OrderedJson tools = OrderedJson::array();
    for (size_t index = 0; index < given.size(); ++index) {
      tools.push_back(read_tool(given[index], "/" + std::to_string(index)));
    }
    return {std::move(tools), std::move(functions_)};
  }

 private:
  [[noreturn]] void fail(const std::string& pointer, const OrderedJson& found,
                         const std::string& expected) const {
    throw Error(ErrorKind::kBadFile,
                name_ + ": '#" + pointer + "' is " + shown_json(found) + "; expected " + expected);
  }

  OrderedJson read_tool(const OrderedJson& tool, const std::string& pointer) {
    if (!tool.is_object()) fail(pointer, tool, "an object with \"type\" and \"function\"");
    const auto type = tool.find("type");
    const auto function = tool.find("function");
    if (function == tool.end() && tool.contains("name")) {  // a function itself
      OrderedJson wrapped = {{"type", "function"}, {"function", read_function(tool, pointer)}};
      return wrapped;
    }
    if (type != tool.end() && *type != "function") fail(pointer + "/type", *type, "\"function\"");
    if (function == tool.end()) fail(pointer, tool, "an object with \"function\"");
    OrderedJson whole = tool;
    whole["type"] = "function";
    whole["function"] = read_function(*function, pointer + "/function");
    return whole;
  }

  OrderedJson read_function(const OrderedJson& function, const std::string& pointer) {
    if (!function.is_object()) fail(pointer, function, "an object with \"name\"");
    const auto name = function.find("name");
    if (name == function.end()) fail(pointer, function, "an object with \"name\"");
    const std::string expected =
        "a name of at most " + std::to_string(kMaxFunctionName) + " letters, digits or _ - . : /";
    if (!name->is_string() || !is_function_name(name->get_ref<const std::string&>())) {
      fail(pointer + "/name", *name, expected);
    }
    ToolFunction found{.name = name->get<std::string>(), .parameters = kNoArguments};
    if (!names_.insert(found.name).second) {
      fail(pointer + "/name", *name, "a name that no other function has");
    }
    const auto parameters = function.find("parameters");
    if (parameters != function.end() && !parameters->is_null()) {
      found.parameters = read_parameters(*parameters, pointer + "/parameters");
    }
    functions_.push_back(std::move(found));
    return function;
  }

  /// Arguments are an object, also where the schema leaves that open.
  std::string read_parameters(const OrderedJson& schema, const std::string& pointer) const {
    if (!schema.is_object()) fail(pointer, schema, "the JSON Schema of an object");
    const auto type = schema.find("type");
    if (type != schema.end() && *type != "object") fail(pointer + "/type", *type, "\"object\"");
    OrderedJson typed = {{"type", "object"}};
    if (type != schema.end()) typed = schema;
    if (type == schema.end()) typed.update(schema);
    chat::close_objects(typed);
    return typed.dump();
  }

  const std::string& name_;
  std::set<std::string> names_;
  std::vector<ToolFunction> functions_;
};

/// Returns whether the fields have arguments that are the text of an object; they are objects then.
bool make_arguments_objects(std::string& fields_json) {
  if (fields_json.find("\"tool_calls\"") == std::string::npos) return false;
  bool is_too_deep = false, has_texts = false;
  OrderedJson fields = parse_bounded(fields_json, is_too_deep);
  const auto calls = fields.is_object() ? fields.find("tool_calls") : fields.end();
  if (is_too_deep || calls == fields.end() || !calls->is_array()) return false;
  for (OrderedJson& call : *calls) {
    OrderedJson* function =
        call.is_object() && call.contains("function") ? &call["function"] : &call;
    if (!function->is_object() || !function->contains("arguments")) continue;
    OrderedJson& arguments = (*function)["arguments"];
    if (!arguments.is_string()) continue;
    OrderedJson object = parse_bounded(arguments.get<std::string>(), is_too_deep);
    if (is_too_deep) return false;
    if (!object.is_object()) continue;
    arguments = std::move(object);
    has_texts = true;
  }
  if (has_texts) fields_json = fields.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
  return has_texts;
}

std::string joined_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

struct ChatTools::Impl {
  std::string json;
  std::vector<ToolFunction> functions;
};

ChatTools::ChatTools(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

ChatTools ChatTools::parse(std::string_view json, const std::string& name) {
  auto [tools, functions] = ToolsReader(name).read(json);
  auto impl = std::make_shared<Impl>();
  impl->json = tools.dump();
  impl->functions = std::move(functions);
  return ChatTools(std::move(impl));
}

const std::string& ChatTools::json() const { return impl_->json; }
std::span<const ToolFunction> ChatTools::functions() const { return impl_->functions; }

ToolChoice ToolChoice::parse(std::string_view text) {
  if (text == "auto") return {.kind = Kind::kAuto};
  if (text == "none") return {.kind = Kind::kNone};
  if (text == "required") return {.kind = Kind::kRequired};
  const auto refuse = [&] {
    throw Error(ErrorKind::kInvalidArgument,
                "the choice of tools is '" + std::string(text.substr(0, kMaxShownJson)) +
                    "'; expected auto, none, required, the name of a function or "
                    "{\"type\": \"function\", \"function\": {\"name\": …}}");
  };
  if (chat::trim_space(text).starts_with('{') || text.starts_with('"')) {
    bool is_too_deep = false;
    const OrderedJson json = parse_bounded(text, is_too_deep);
    if (json.is_string() && !json.get_ref<const std::string&>().starts_with('"')) {
      return parse(json.get<std::string>());
    }
    const bool is_function = json.is_object() && json.contains("function") &&
                             json.contains("type") && json["type"] == "function";
    if (!is_function) refuse();
    const OrderedJson& function = json["function"];
    if (!function.is_object() || !function.contains("name") || !function["name"].is_string()) {
      refuse();
    }
    return {.kind = Kind::kFunction, .function = function["name"].get<std::string>()};
  }
  if (!is_function_name(text)) refuse();
  return {.kind = Kind::kFunction, .function = std::string(text)};
}

std::vector<std::string> tool_call_formats() {
  std::vector<std::string> names;
  for (const chat::OutputFormat& format : chat::output_formats()) {
    if (format.call_tags != nullptr) names.emplace_back(format.name);
  }
  return names;
}

std::string find_tool_call_format(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  std::string name = find_chat_output_format(chat, tokenizer);
  return name == "plain" || name == "think" ? "hermes" : name;
}

ToolCallTags tool_call_tags(std::string_view format, const ChatTools& tools,
                            const Tokenizer& tokenizer, const ToolCallOptions& options) {
  const chat::OutputFormat* used = chat::find_output_format(format);
  if (used == nullptr || used->call_tags == nullptr) {
    throw Error(ErrorKind::kUnsupported,
                "calls of functions cannot be constrained in the format '" + std::string(format) +
                    "' of answers; expected one of " + joined_names(tool_call_formats()));
  }
  using Kind = ToolChoice::Kind;
  chat::CallRequest request{
      .functions = {},
      .must_call = options.choice.kind == Kind::kRequired || options.choice.kind == Kind::kFunction,
      .parallel = options.parallel && options.choice.kind != Kind::kFunction,
      .prompt = options.prompt,
      .template_source = options.template_source};
  std::vector<std::string> names;
  for (const ToolFunction& function : tools.functions()) {
    names.push_back(function.name);
    const bool is_allowed = options.choice.kind == Kind::kFunction
                                ? function.name == options.choice.function
                                : options.choice.kind != Kind::kNone;
    if (is_allowed) request.functions.push_back(function);
  }
  if (request.functions.empty() && options.choice.kind != Kind::kNone) {
    throw Error(ErrorKind::kInvalidArgument,
                "the choice of tools names '" + options.choice.function.substr(0, kMaxShownJson) +
                    "', and the functions are " + joined_names(names) + "; expected one of them");
  }
  ToolCallTags tags{.json = used->call_tags(request), .marks = {}};
  for (const std::string_view mark : used->marks) {
    const int32_t id = tokenizer.token_id(mark);
    if (id >= 0) tags.marks.emplace_back(id, mark);
  }
  return tags;
}

std::string render_with_calls(const ChatTemplate& chat, std::span<const ChatMessage> messages,
                              const ChatOptions& options) {
  std::vector<ChatMessage> changed(messages.begin(), messages.end());
  bool has_texts = false;
  for (ChatMessage& message : changed) has_texts |= make_arguments_objects(message.fields_json);
  if (!has_texts) return chat.render(messages, options);
  try {
    return chat.render(changed, options);
  } catch (const Error&) {  // it wants texts, or says better what is wrong
    return chat.render(messages, options);
  }
}

bool writes_tools(const ChatTemplate& chat, std::span<const ChatMessage> messages,
                  const ChatOptions& options) {
  ChatOptions with = options, without = options;
  with.now = without.now = options.now.value_or(0);
  without.tools_json.clear();
  const std::string told = chat.render(messages, with);
  try {
    return told != chat.render(messages, without);
  } catch (const Error&) {  // it cannot do without them
    return true;
  }
}

}  // namespace vitrine
