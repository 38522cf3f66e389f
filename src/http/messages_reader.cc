// SPDX-License-Identifier: Apache-2.0
#include "http/messages_reader.h"

#include <utility>

#include "http/dialect.h"

namespace vitrine::http {

namespace {

const FieldNames kNames = {{"stop", "stop_sequences"}, {"response_format", "output_config.format"}};

// What a block or tool is that the model cannot read.
[[noreturn]] void refuse_kind(const std::string& place, const std::string& type,
                              const std::string& expected) {
  throw HttpError({.status = 400,
                   .type = failure_type(400),
                   .message = "'" + place + "' is of type '" + type + "'; expected " + expected,
                   .param = place});
}

// Each block of a content, which may be one text.
template <typename Take>
void for_blocks(const Json& content, const std::string& place, Take take) {
  if (content.is_string()) {
    take(Json({{"type", "text"}, {"text", content}}), place, std::string("text"));
    return;
  }
  if (!content.is_array()) refuse_value(place, content, "a text, or a list of blocks");
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string here = item_place(place, i);
    take(content[i], here, read_type(content[i], here));
  }
}

/// Writes Anthropic's turns as messages of chat completions.
class Conversation {
 public:
  void add_system(const Json& content, const std::string& place) {
    Json& message = turn("system");
    for_blocks(content, place, [&](const Json& block, const std::string& here, const auto& type) {
      if (type != "text") refuse_kind(here, type, "text blocks");
      add_text(message, read_text(block, here, "text"));
    });
  }

  void add_user(const Json& content, const std::string& place) {
    bool has_begun = false;
    for_blocks(content, place, [&](const Json& block, const std::string& here, const auto& type) {
      if (type == "tool_result") {
        add_result(block, here);
        has_begun = false;
      } else if (type == "text") {
        if (!std::exchange(has_begun, true)) turn("user");
        add_text(list_.back(), read_text(block, here, "text"));
      } else {
        refuse_kind(here, type, "text and tool_result, since the model reads nothing else");
      }
    });
  }

  void add_assistant(const Json& content, const std::string& place) {
    Json& message = turn("assistant");
    for_blocks(content, place, [&](const Json& block, const std::string& here, const auto& type) {
      if (type == "text") {
        add_text(message, read_text(block, here, "text"));
      } else if (type == "tool_use") {
        add_call(message, block, here);
      } else if (type == "thinking") {
        // The names that templates know it by.
        const std::string text = read_text(block, here, "thinking");
        for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
          message[name] = message.value(name, std::string()) + text;
        }
      } else if (type != "redacted_thinking") {  // which nobody but its maker can read
        refuse_kind(here, type, "text, thinking and tool_use, since the model reads nothing else");
      }
    });
  }

  // The last turn's text where it is the assistant's: the answer goes on behind it.
  std::string take_start(const std::string& place) {
    if (list_.empty() || list_.back()["role"] != "assistant") return "";
    if (list_.back().contains("tool_calls")) {
      throw HttpError(
          400, "'" + place + "' ends with a tool_use; expected a user's tool_result behind it");
    }
    std::string start;
    if (const Json* parts = find_field(list_.back(), "content")) {
      for (const Json& part : *parts) start += part["text"].get<std::string>();
    }
    list_.erase(list_.size() - 1);
    return start;
  }

  Json take() { return std::move(list_); }

 private:
  // Turns of one role behind each other are one.
  Json& turn(const char* role) {
    const bool goes_on = !list_.empty() && list_.back()["role"] == role;
    if (!goes_on) {
      list_.push_back({{"role", role}});
    } else if (list_.back().contains("content")) {
      add_text(list_.back(), "\n\n");
    }
    return list_.back();
  }

  static void add_call(Json& message, const Json& block, const std::string& here) {
    const Json* input = find_field(block, "input");
    if (input == nullptr || !input->is_object()) {
      refuse_value(here + ".input", input == nullptr ? Json(nullptr) : *input, "an object");
    }
    message["tool_calls"].push_back(
        {{"id", read_text(block, here, "id")},
         {"type", "function"},
         {"function", {{"name", read_text(block, here, "name")}, {"arguments", dump(*input)}}}});
  }

  void add_result(const Json& block, const std::string& here) {
    Json message = {{"role", "tool"}, {"tool_call_id", read_text(block, here, "tool_use_id")}};
    if (const Json* content = find_field(block, "content")) {
      for_blocks(*content, here + ".content",
                 [&](const Json& part, const std::string& place, const auto& type) {
                   if (type != "text") refuse_kind(place, type, "text blocks");
                   add_text(message, read_text(part, place, "text"));
                 });
    }
    if (const Json* is_error = find_field(block, "is_error")) message["is_error"] = *is_error;
    list_.push_back(std::move(message));
  }

  Json list_ = Json::array();
};

std::string read_turns(const Json& body, Json& chat) {
  Conversation conversation;
  if (const Json* system = find_field(body, "system")) conversation.add_system(*system, "system");
  const Json* messages = find_field(body, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    refuse_value("messages", messages == nullptr ? Json(nullptr) : *messages,
                 "a list of one message or more");
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    const std::string place = item_place("messages", i);
    const Json& one = (*messages)[i];
    if (!one.is_object()) refuse_value(place, one, "an object with a 'role' and a 'content'");
    const std::string role = read_text(one, place, "role");
    const Json* content = find_field(one, "content");
    if (content == nullptr) refuse_value(place + ".content", nullptr, "a text or blocks");
    if (role == "user") {
      conversation.add_user(*content, place + ".content");
    } else if (role == "assistant") {
      conversation.add_assistant(*content, place + ".content");
    } else if (role == "system") {
      conversation.add_system(*content, place + ".content");
    } else {
      refuse_value(place + ".role", role, "user, assistant or system");
    }
  }
  std::string start = conversation.take_start(item_place("messages", messages->size() - 1));
  chat["messages"] = conversation.take();
  if (chat["messages"].empty()) refuse_value("messages", *messages, "a message of the user's");
  return start;
}

void read_tools(const Json& body, Json& chat) {
  const Json* tools = find_field(body, "tools");
  if (tools == nullptr) return;
  if (!tools->is_array()) refuse_value("tools", *tools, "a list of tools");
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string place = item_place("tools", i);
    const Json& tool = (*tools)[i];
    const std::string type = read_type(tool, place, "custom");
    if (type != "custom") refuse_kind(place, type, "tools of the client's own, of type 'custom'");
    Json function = {{"name", read_text(tool, place, "name")}};
    if (find_field(tool, "description") != nullptr) {
      function["description"] = read_text(tool, place, "description");
    }
    const Json* schema = find_field(tool, "input_schema");
    if (schema == nullptr || !schema->is_object()) {
      refuse_value(place + ".input_schema", schema == nullptr ? Json(nullptr) : *schema,
                   "a JSON Schema of an object");
    }
    function["parameters"] = *schema;
    chat["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  }
}

void read_tool_choice(const Json& body, Json& chat) {
  const Json* choice = find_field(body, "tool_choice");
  if (choice == nullptr) return;
  const std::string type = read_type(*choice, "tool_choice");
  if (const Json* alone = find_field(*choice, "disable_parallel_tool_use")) {
    if (!alone->is_boolean()) {
      refuse_value("tool_choice.disable_parallel_tool_use", *alone, "true or false");
    }
    chat["parallel_tool_calls"] = !alone->get<bool>();
  }
  const Json* name = find_field(*choice, "name");
  if (name != nullptr && !name->is_string()) refuse_value("tool_choice.name", *name, "a text");
  const bool must_call = type == "any" || type == "tool";
  if (must_call && !chat.contains("tools"))
    refuse_value("tool_choice", *choice, "'tools' beside it");
  if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else if (type == "tool") {
    chat["tool_choice"] = {{"type", "function"},
                           {"function", {{"name", read_text(*choice, "tool_choice", "name")}}}};
  } else {
    refuse_value("tool_choice.type", type, "auto, any, tool or none");
  }
}

// How templates are told whether to think; returns whether the thoughts are shown.
bool read_thinking(const Json& body, Json& chat) {
  const Json* thinking = find_field(body, "thinking");
  if (thinking == nullptr) return true;
  const std::string type = read_type(*thinking, "thinking");
  if (type == "enabled" || type == "disabled") {
    set_template_variable(chat, "enable_thinking", type == "enabled");
    set_template_variable(chat, "thinking", type == "enabled");
  } else if (type != "adaptive") {
    refuse_value("thinking.type", type, "enabled, disabled or adaptive");
  }
  const Json* display = find_field(*thinking, "display");
  return display == nullptr || *display != "omitted";
}

void read_output_config(const Json& body, Json& chat) {
  const Json* config = find_field(body, "output_config");
  if (config == nullptr) return;
  if (!config->is_object()) refuse_value("output_config", *config, "an object");
  if (find_field(*config, "effort") != nullptr) {
    const std::string effort = read_text(*config, "output_config", "effort");
    const bool is_most = effort == "xhigh" || effort == "max";
    set_template_variable(chat, "reasoning_effort", is_most ? "high" : effort);
  }
  const Json* format = find_field(*config, "format");
  if (format == nullptr) return;
  const std::string type = read_type(*format, "output_config.format");
  const Json* schema = find_field(*format, "schema");
  if (type != "json_schema" || schema == nullptr) {
    refuse_value("output_config.format", *format, "a 'type' json_schema and a 'schema'");
  }
  chat["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"schema", *schema}}}};
}

}  // namespace

MessagesRequest read_messages(std::string_view text, bool counts) {
  const Json body = parse_body(text);
  Json chat = Json::object();
  copy_shared_fields(body, chat);
  const std::string start = read_turns(body, chat);
  read_tools(body, chat);
  read_tool_choice(body, chat);
  read_output_config(body, chat);
  MessagesRequest read;
  read.shows_thinking = read_thinking(body, chat);
  const Json* limit = find_field(body, "max_tokens");
  if (limit != nullptr) {
    chat["max_tokens"] = *limit;
  } else if (!counts) {
    refuse_value("max_tokens", nullptr, "how many tokens the answer may have");
  }
  if (const Json* stops = find_field(body, "stop_sequences")) {
    if (!stops->is_array()) refuse_value("stop_sequences", *stops, "a list of texts");
    if (!stops->empty()) chat["stop"] = *stops;
  }
  if (const Json* metadata = find_field(body, "metadata"); metadata && !metadata->is_object()) {
    refuse_value("metadata", *metadata, "an object");
  }
  if (const Json* servers = find_field(body, "mcp_servers"); servers && !servers->empty()) {
    refuse_value("mcp_servers", *servers, "none, since this server calls no others");
  }
  read.chat = read_chat(chat, kNames);
  read.chat.requests.front().answer_start = start;
  return read;
}

}  // namespace vitrine::http
