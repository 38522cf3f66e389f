// SPDX-License-Identifier: Apache-2.0
#include "http/responses_reader.h"

#include <utility>

#include "http/dialect.h"

namespace vitrine::http {

namespace {

const FieldNames kNames = {
    {"messages", "input"}, {"max_tokens", "max_output_tokens"}, {"response_format", "text.format"}};

// What this server knows and cannot do.
[[noreturn]] void refuse_support(const std::string& place, const std::string& why) {
  throw Error(ErrorKind::kUnsupported, "'" + place + "' " + why);
}

/// Writes a response's input as messages of chat completions.
class Conversation {
 public:
  void add_instructions(const std::string& text) { add_text(system(), text); }

  void add_item(const Json& item, const std::string& place) {
    const std::string type = read_type(item, place, "message");
    if (type == "message") {
      add_message(item, place);
    } else if (type == "function_call") {
      assistant([](const Json&) { return true; })["tool_calls"].push_back(
          {{"id", read_text(item, place, "call_id")},
           {"type", "function"},
           {"function",
            {{"name", read_text(item, place, "name")},
             {"arguments", read_text(item, place, "arguments")}}}});
    } else if (type == "function_call_output") {
      add_output(item, place);
    } else if (type == "reasoning") {
      add_reasoning(item, place);
    } else if (type == "item_reference") {
      refuse_support(place,
                     "names an item of an earlier response, and nothing is stored; expected "
                     "the item itself");
    } else {
      refuse_support(place, "is of type '" + type +
                                "'; expected message, function_call, function_call_output or "
                                "reasoning");
    }
  }

  Json take() { return std::move(list_); }

 private:
  // What the system says first is one message, whoever says it.
  Json& system() {
    if (list_.size() == 1 && list_.back()["role"] == "system") {
      add_text(list_.back(), "\n\n");
    } else {
      list_.push_back({{"role", "system"}});
    }
    return list_.back();
  }

  // The assistant's turn that stands last, where it may go on; else a new one.
  template <typename MayGoOn>
  Json& assistant(MayGoOn may_go_on) {
    const bool goes_on =
        !list_.empty() && list_.back()["role"] == "assistant" && may_go_on(list_.back());
    if (!goes_on) list_.push_back({{"role", "assistant"}});
    return list_.back();
  }

  static void add_parts(Json& message, const Json& content, const std::string& place) {
    if (content.is_string()) return add_text(message, content.get<std::string>());
    if (!content.is_array()) refuse_value(place, content, "a text, or a list of parts");
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string here = item_place(place, i);
      const std::string type = read_type(content[i], here);
      const bool is_refusal = type == "refusal";
      if (type != "input_text" && type != "output_text" && type != "text" && !is_refusal) {
        refuse_support(here, "is of type '" + type +
                                 "'; expected text alone, since the model reads nothing else");
      }
      add_text(message, read_text(content[i], here, is_refusal ? "refusal" : "text"));
    }
  }

  void add_message(const Json& item, const std::string& place) {
    const std::string role = read_text(item, place, "role");
    const Json* content = find_field(item, "content");
    if (content == nullptr) refuse_value(place + ".content", nullptr, "a text or parts");
    Json* message = nullptr;
    if (role == "system" || role == "developer") {
      message = &system();
    } else if (role == "assistant") {
      message = &assistant([](const Json& last) {
        return !last.contains("content") && !last.contains("tool_calls");
      });
    } else if (role == "user") {
      list_.push_back({{"role", role}});
      message = &list_.back();
    } else {
      refuse_value(place + ".role", role, "user, assistant, system or developer");
    }
    add_parts(*message, *content, place + ".content");
  }

  void add_output(const Json& item, const std::string& place) {
    Json message = {{"role", "tool"}, {"tool_call_id", read_text(item, place, "call_id")}};
    const Json* output = find_field(item, "output");
    if (output == nullptr) refuse_value(place + ".output", nullptr, "a text or parts");
    add_parts(message, *output, place + ".output");
    list_.push_back(std::move(message));
  }

  // What was thought as it was, else what was said of it.
  void add_reasoning(const Json& item, const std::string& place) {
    std::string text;
    for (const char* name : {"content", "summary"}) {
      const Json* parts = find_field(item, name);
      if (parts == nullptr || !text.empty()) continue;
      const std::string field = place + "." + name;
      if (!parts->is_array()) refuse_value(field, *parts, "a list of parts");
      for (size_t i = 0; i < parts->size(); ++i) {
        const std::string here = item_place(field, i);
        read_type((*parts)[i], here);
        text += read_text((*parts)[i], here, "text");
      }
    }
    if (text.empty()) return;  // encrypted: nobody but its maker can read it
    Json& message = assistant(
        [](const Json& last) { return !last.contains("content") && !last.contains("tool_calls"); });
    // The names that templates know it by.
    for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
      message[name] = message.value(name, std::string()) + text;
    }
  }

  Json list_ = Json::array();
};

void read_input(const Json& body, Json& chat) {
  Conversation conversation;
  if (const Json* instructions = find_field(body, "instructions")) {
    if (!instructions->is_string()) refuse_value("instructions", *instructions, "a text");
    conversation.add_instructions(instructions->get<std::string>());
  }
  const Json* input = find_field(body, "input");
  const bool is_list = input != nullptr && input->is_array() && !input->empty();
  if (!is_list && (input == nullptr || !input->is_string())) {
    refuse_value("input", input == nullptr ? Json(nullptr) : *input,
                 "a text, or a list of one item or more");
  }
  if (!is_list) {
    conversation.add_item({{"role", "user"}, {"content", *input}}, "input");
  } else {
    for (size_t i = 0; i < input->size(); ++i) {
      conversation.add_item((*input)[i], item_place("input", i));
    }
  }
  chat["messages"] = conversation.take();
  // Encrypted reasoning alone is no message.
  if (chat["messages"].empty()) refuse_value("input", *input, "an item that can be read");
}

void read_tools(const Json& body, Json& chat) {
  const Json* tools = find_field(body, "tools");
  if (tools == nullptr) return;
  if (!tools->is_array()) refuse_value("tools", *tools, "a list of tools");
  for (size_t i = 0; i < tools->size(); ++i) {
    const std::string place = item_place("tools", i);
    const Json& tool = (*tools)[i];
    const std::string type = read_type(tool, place);
    if (type != "function") {
      refuse_support(place, "is of type '" + type +
                                "'; expected type 'function', since this server runs no tools");
    }
    Json function = {{"name", read_text(tool, place, "name")}};
    for (const char* name : {"description", "parameters", "strict"}) {
      if (const Json* found = find_field(tool, name)) function[name] = *found;
    }
    chat["tools"].push_back({{"type", "function"}, {"function", std::move(function)}});
  }
}

void read_tool_choice(const Json& body, Json& chat) {
  if (const Json* parallel = find_field(body, "parallel_tool_calls")) {
    chat["parallel_tool_calls"] = *parallel;
  }
  const Json* choice = find_field(body, "tool_choice");
  if (choice == nullptr) return;
  if (choice->is_string()) {
    if (*choice != "none" && *choice != "auto" && *choice != "required") {
      refuse_value("tool_choice", *choice, "none, auto, required, or a function");
    }
    chat["tool_choice"] = *choice;
  } else {
    const std::string type = read_type(*choice, "tool_choice");
    if (type != "function") {
      refuse_support("tool_choice", "is of type '" + type + "'; expected a function");
    }
    chat["tool_choice"] = {{"type", "function"},
                           {"function", {{"name", read_text(*choice, "tool_choice", "name")}}}};
  }
  const bool must_call = chat["tool_choice"] != "none" && chat["tool_choice"] != "auto";
  if (must_call && !chat.contains("tools")) {
    refuse_value("tool_choice", *choice, "'tools' beside it");
  }
}

void read_format(const Json& body, Json& chat) {
  const Json* text = find_field(body, "text");
  if (text == nullptr) return;
  if (!text->is_object()) refuse_value("text", *text, "an object");
  const Json* format = find_field(*text, "format");
  if (format == nullptr) return;
  const std::string type = read_type(*format, "text.format");
  if (type == "text" || type == "json_object") {
    chat["response_format"] = {{"type", type}};
  } else if (type == "json_schema") {
    const Json* schema = find_field(*format, "schema");
    if (schema == nullptr) refuse_value("text.format.schema", nullptr, "a JSON Schema");
    chat["response_format"] = {{"type", type}, {"json_schema", {{"schema", *schema}}}};
  } else {
    refuse_value("text.format.type", type, "text, json_object or json_schema");
  }
}

// How templates are told how much to think.
void read_reasoning(const Json& body, Json& chat) {
  const Json* reasoning = find_field(body, "reasoning");
  if (reasoning == nullptr) return;
  if (!reasoning->is_object()) refuse_value("reasoning", *reasoning, "an object");
  if (find_field(*reasoning, "effort") == nullptr) return;
  const std::string effort = read_text(*reasoning, "reasoning", "effort");
  set_template_variable(chat, "enable_thinking", effort != "none");
  if (effort == "none") return;
  const bool is_most = effort == "xhigh" || effort == "max";
  set_template_variable(chat, "reasoning_effort",
                        is_most ? "high" : (effort == "minimal" ? "low" : effort));
}

void refuse_unsupported(const Json& body) {
  for (const char* name : {"previous_response_id", "conversation"}) {
    if (find_field(body, name) != nullptr) {
      refuse_support(name,
                     "names what was said before, and this server stores nothing; expected "
                     "all of it in 'input'");
    }
  }
  if (find_field(body, "prompt") != nullptr) {
    refuse_support("prompt",
                   "names a stored prompt, and this server stores nothing; expected "
                   "'instructions' and 'input'");
  }
  if (const Json* background = find_field(body, "background"); background && *background != false) {
    refuse_support("background", "is set, and this server stores no answers; expected false");
  }
  const Json* best = find_field(body, "top_logprobs");
  if (best != nullptr && *best != 0) {
    refuse_support("top_logprobs", "is not there; /v1/chat/completions has it");
  }
  const Json* include = find_field(body, "include");
  if (include == nullptr) return;
  if (!include->is_array()) refuse_value("include", *include, "a list of texts");
  for (const Json& each : *include) {
    if (each == "message.output_text.logprobs") {
      refuse_support("include", "has message.output_text.logprobs; /v1/chat/completions has it");
    }
  }
}

Json shown_fields(const Json& body, const Json& chat, const SamplerOptions& sampler) {
  const auto given = [&](const char* name, const Json& standard) {
    const Json* found = find_field(body, name);
    return found == nullptr ? standard : *found;
  };
  Json text = given("text", Json::object());
  if (find_field(text, "format") == nullptr) text["format"] = {{"type", "text"}};
  Json reasoning = {{"effort", nullptr}, {"summary", nullptr}};
  reasoning.update(given("reasoning", Json::object()));
  Json tools = given("tools", Json::array());
  for (Json& tool : tools) {
    for (const char* name : {"parameters", "strict"}) {
      if (!tool.contains(name)) tool[name] = nullptr;
    }
  }
  return {{"instructions", given("instructions", nullptr)},
          {"max_output_tokens", given("max_output_tokens", nullptr)},
          {"metadata", given("metadata", Json::object())},
          {"parallel_tool_calls", chat.value("parallel_tool_calls", true)},
          {"previous_response_id", nullptr},
          {"reasoning", reasoning},
          {"store", false},
          {"temperature", given("temperature", sampler.temperature)},
          {"text", text},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", tools},
          {"top_logprobs", 0},
          {"top_p", given("top_p", sampler.top_p)},
          {"truncation", "disabled"},
          {"user", given("user", nullptr)}};
}

}  // namespace

ResponsesRequest read_responses(std::string_view text) {
  const Json body = parse_body(text);
  refuse_unsupported(body);
  Json chat = Json::object();
  copy_shared_fields(body, chat);
  read_input(body, chat);
  read_tools(body, chat);
  read_tool_choice(body, chat);
  read_format(body, chat);
  read_reasoning(body, chat);
  if (const Json* limit = find_field(body, "max_output_tokens")) chat["max_tokens"] = *limit;
  if (const Json* stop = find_field(body, "stop")) chat["stop"] = *stop;
  if (const Json* metadata = find_field(body, "metadata"); metadata && !metadata->is_object()) {
    refuse_value("metadata", *metadata, "an object");
  }
  if (const Json* store = find_field(body, "store"); store && !store->is_boolean()) {
    refuse_value("store", *store, "true or false");
  }
  ResponsesRequest read;
  read.chat = read_chat(chat, kNames);
  read.shown = shown_fields(body, chat, read.chat.requests.front().sampler);
  return read;
}

}  // namespace vitrine::http
