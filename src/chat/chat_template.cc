// SPDX-License-Identifier: Apache-2.0
#include "vitrine/chat.h"

#include <algorithm>
#include <chrono>
#include <set>

#include "core/end_texts.h"
#include "interpreter.h"
#include "json_values.h"
#include "parser.h"
#include "text.h"

namespace vitrine {

using chat::Value;

namespace {

constexpr size_t kMaxTemplateBytes = size_t{4} << 20;
/// To read a tokenizer_config.json of a few megabytes.
constexpr uint64_t kMaxConfigWork = uint64_t{1} << 30;

struct Source {
  std::string name;  ///< "default", "tool_use", …
  chat::Block block;
  std::string text;
};

/// A tokenizer_config.json: a dict.
Value read_config(std::string_view json, const std::string& name) {
  chat::Runtime reader(name, kMaxConfigWork);
  Value config = chat::parse_json_value(reader, json);
  if (config.as_dict() == nullptr) {
    throw Error(ErrorKind::kBadFile,
                name + ": found a JSON " + type_name(config) + "; expected an object");
  }
  return config;
}

/// The further fields of a message.
void add_fields(chat::Runtime& maker, const std::string& json,
                std::vector<std::pair<Value, Value>>& fields) {
  const auto refuse = [](const std::string& found) {
    throw Error(ErrorKind::kInvalidArgument,
                "the fields of a message are " + found + "; expected a JSON object");
  };
  Value given;
  try {
    given = chat::parse_json_value(maker, json);
  } catch (const Error& error) {
    refuse(std::string("no JSON (") + error.what() + ")");
  }
  if (given.as_dict() == nullptr) refuse("a JSON " + type_name(given));
  for (const auto& field : given.as_dict()->items) fields.push_back(field);
}

}  // namespace

struct ChatTemplate::Impl {
  std::string file;
  std::vector<Source> sources;
  std::vector<std::pair<std::string, Value>> special_tokens;

  void add(const std::string& name, const std::string& text) {
    if (text.size() > kMaxTemplateBytes) {
      throw Error(ErrorKind::kBadFile,
                  file + ": the chat template has " + std::to_string(text.size()) +
                      " bytes; expected at most " + std::to_string(kMaxTemplateBytes));
    }
    sources.push_back({name, chat::parse_template(text, file), text});
  }

  void add_special_tokens(const chat::Dict& config) {
    for (const auto& [key, value] : config.items) {
      const std::string& field = key.as_text()->bytes;
      if (!field.ends_with("_token")) continue;
      // Either the text or the token as an object.
      const Value* text = value.as_dict() == nullptr ? &value : value.as_dict()->find("content");
      if (text != nullptr && text->as_text() != nullptr) special_tokens.emplace_back(field, *text);
    }
  }

  const Source* find(std::string_view name) const {
    const auto found = std::ranges::find(sources, name, &Source::name);
    return found == sources.end() ? nullptr : &*found;
  }

  const Source& choose(bool has_tools) const {
    const Source* source = has_tools ? find("tool_use") : nullptr;
    if (source == nullptr) source = find("default");
    if (source != nullptr) return *source;
    std::string known;
    for (const Source& other : sources) known += (known.empty() ? "" : ", ") + other.name;
    throw Error(ErrorKind::kBadFile,
                file + ": the chat templates are " + known + "; expected one named 'default'");
  }

  std::string render(const Value* messages, const ChatOptions& options) const {
    chat::Runtime reader(file, options.max_work);
    chat::Values variables;
    bool has_tools = false;
    const auto set = [&](const std::string& name, Value value) {
      variables.push_back(Value::text(name));
      variables.push_back(std::move(value));
    };
    for (const auto& [name, value] : special_tokens) set(name, value);
    set("add_generation_prompt", Value(options.add_generation_prompt));
    set("tools", Value(chat::None()));
    set("documents", Value(chat::None()));
    if (!options.variables_json.empty()) {
      chat::Runtime given_reader("variables", options.max_work);
      const Value given = chat::parse_json_value(given_reader, options.variables_json);
      if (given.as_dict() == nullptr) {
        throw Error(ErrorKind::kInvalidArgument,
                    "the variables of a chat template are a JSON " + type_name(given) +
                        "; expected an object, as {\"enable_thinking\": false}");
      }
      for (const auto& [key, value] : given.as_dict()->items) {
        set(key.as_text()->bytes, value);
        has_tools |= key.as_text()->bytes == "tools" && !value.is_none();
      }
    }
    if (!options.tools_json.empty()) {
      chat::Runtime tools_reader("tools", options.max_work);
      Value tools = chat::parse_json_value(tools_reader, options.tools_json);
      if (tools.as_list() == nullptr || has_tools) {
        throw Error(ErrorKind::kInvalidArgument,
                    has_tools ? std::string("the tools of a conversation are given twice; expected "
                                            "them among its variables, or beside them")
                              : "the tools of a conversation are a JSON " + type_name(tools) +
                                    "; expected an array of functions");
      }
      set("tools", std::move(tools));
      has_tools = true;
    }
    if (messages != nullptr) set("messages", *messages);
    using Clock = std::chrono::system_clock;
    const int64_t now = options.now.value_or(
        std::chrono::duration_cast<std::chrono::seconds>(Clock::now().time_since_epoch()).count());
    chat::Interpreter interpreter(file, std::move(variables), options.max_work,
                                  options.max_output_bytes, now);
    return interpreter.run(choose(has_tools).block);
  }
};

ChatTemplate::ChatTemplate(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

ChatTemplate ChatTemplate::parse(std::string_view source, const std::string& name,
                                 std::string_view tokenizer_config_json) {
  auto impl = std::make_shared<Impl>();
  impl->file = name;
  const std::string text = chat::valid_utf8(source);
  if (text != source) {
    throw Error(ErrorKind::kBadFile, name + ": the chat template is no UTF-8; expected text");
  }
  if (!tokenizer_config_json.empty()) {
    impl->add_special_tokens(*read_config(tokenizer_config_json, name).as_dict());
  }
  impl->add("default", text);
  return ChatTemplate(std::move(impl));
}

std::optional<ChatTemplate> ChatTemplate::from_tokenizer_config(std::string_view json,
                                                                const std::string& name) {
  if (json.empty()) return std::nullopt;
  auto impl = std::make_shared<Impl>();
  impl->file = name;
  const Value config = read_config(json, name);
  const auto bad = [&](const std::string& found) -> Error {
    return Error(ErrorKind::kBadFile, name + ": chat_template " + found +
                                          "; expected text, or a list of objects with name and "
                                          "template");
  };
  impl->add_special_tokens(*config.as_dict());
  const Value* found = config.as_dict()->find("chat_template");
  if (found == nullptr || found->is_none()) return std::nullopt;
  if (const chat::Text* text = found->as_text()) {
    impl->add("default", text->bytes);
  } else if (const chat::List* list = found->as_list()) {
    for (const Value& entry : list->items) {
      const chat::Dict* fields = entry.as_dict();
      const Value* template_name = fields == nullptr ? nullptr : fields->find("name");
      const Value* source = fields == nullptr ? nullptr : fields->find("template");
      const bool is_whole = template_name != nullptr && template_name->as_text() != nullptr &&
                            source != nullptr && source->as_text() != nullptr;
      if (!is_whole) throw bad("has an entry without name or template");
      impl->add(template_name->as_text()->bytes, source->as_text()->bytes);
    }
    if (impl->sources.empty()) return std::nullopt;
  } else {
    throw bad("is a " + type_name(*found));
  }
  return ChatTemplate(std::move(impl));
}

std::string ChatTemplate::render(std::span<const ChatMessage> messages,
                                 const ChatOptions& options) const {
  chat::Runtime maker(impl_->file, options.max_work);
  chat::Values list;
  for (const ChatMessage& message : messages) {
    std::vector<std::pair<Value, Value>> fields = {
        {Value::text("role"), Value::text(chat::valid_utf8(message.role))},
        {Value::text("content"), Value::text(chat::valid_utf8(message.content))}};
    if (!message.fields_json.empty()) add_fields(maker, message.fields_json, fields);
    list.push_back(chat::make_dict(maker, std::move(fields)));
  }
  const Value value = chat::make_list(maker, std::move(list));
  return impl_->render(&value, options);
}

std::string ChatTemplate::render(const ChatOptions& options) const {
  return impl_->render(nullptr, options);
}

std::vector<std::string> ChatTemplate::names() const {
  std::vector<std::string> names;
  for (const Source& source : impl_->sources) names.push_back(source.name);
  return names;
}

std::string ChatTemplate::source() const {
  std::string text;
  for (const Source& source : impl_->sources) text += (text.empty() ? "" : "\n") + source.text;
  return text;
}

std::string ChatTemplate::special_token(std::string_view name) const {
  for (const auto& [known, text] : impl_->special_tokens) {
    if (known == name) return text.as_text()->bytes;
  }
  return {};
}

std::vector<int32_t> end_of_turn_ids(const Tokenizer& tokenizer, const ChatTemplate& chat) {
  const auto special_id = [&](std::string_view text) {
    const int32_t id = tokenizer.token_id(text);
    return id >= 0 && tokenizer.is_special(id) ? id : -1;
  };
  std::set<int32_t> ids = core::find_end_ids<int32_t>(special_id);
  const std::string end_of_text = chat.special_token("eos_token");
  if (!end_of_text.empty()) ids.insert(tokenizer.token_id(end_of_text));
  ids.erase(-1);
  return {ids.begin(), ids.end()};
}

}  // namespace vitrine
