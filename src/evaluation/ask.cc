// SPDX-License-Identifier: Apache-2.0
#include "evaluation/ask.h"

namespace vitrine::evaluation {

namespace {

std::string option_text(const Task& task, const char* name, const std::string& otherwise) {
  const auto found = task.options.find(name);
  return found != task.options.end() && found->is_string() ? found->get<std::string>() : otherwise;
}

template <typename Number>
Number option_number(const Task& task, const char* name, Number otherwise) {
  const auto found = task.options.find(name);
  return found != task.options.end() && found->is_number() ? found->get<Number>() : otherwise;
}

bool is_conversation(const Task& task, bool takes_messages) {
  return takes_messages && option_text(task, "form", "conversation") != "text";
}

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// OpenAI's message: what is neither role nor content stays beside them.
ChatMessage message_of(const Json& json) {
  ChatMessage message;
  Json others = Json::object();
  for (const auto& [name, value] : json.items()) {
    if (name == "role") {
      message.role = text_of(value);
    } else if (name == "content" && !value.is_null()) {
      message.content = text_of(value);
    } else if (name != "content") {
      others[name] = value;
    }
  }
  if (!others.empty()) message.fields_json = others.dump();
  return message;
}

std::vector<ChatMessage> messages_of(const Task& task, const Item& item) {
  std::vector<ChatMessage> messages;
  const std::string system = fill_template(option_text(task, "system", ""), item.data);
  if (!system.empty()) messages.push_back({"system", system});
  if (const auto found = item.data.find("messages"); found != item.data.end()) {
    for (const Json& one : *found) messages.push_back(message_of(one));
    return messages;
  }
  messages.push_back({"user", fill_template(option_text(task, "template", "{prompt}"), item.data)});
  return messages;
}

std::string text_prompt(const Task& task, const Item& item) {
  const std::string form =
      option_text(task, "text_template", option_text(task, "template", "{prompt}"));
  const std::string system = fill_template(option_text(task, "system", ""), item.data);
  std::string text = system.empty() ? "" : system + "\n\n";
  const auto found = item.data.find("messages");
  if (found == item.data.end()) return text + fill_template(form, item.data);
  for (const Json& one : *found) {
    const ChatMessage message = message_of(one);
    text += message.role + ": " + message.content + "\n";
  }
  return text + "assistant:";
}

ChatOptions chat_options(const Item& item) {
  ChatOptions options;
  if (const auto found = item.data.find("tools"); found != item.data.end()) {
    options.tools_json = found->dump();
  }
  return options;
}

void require_chat(const Task& task, const Item& item) {
  if (!item.data.contains("tools")) return;
  throw Error(ErrorKind::kUnsupported,
              "task '" + task.told.name + "', item '" + item.id +
                  "' offers tools, and the model has no chat template; expected one that has");
}

void hold(const Task& task, const Item& item, ServeRequest& request) {
  const std::string constrain = option_text(task, "constrain", "none");
  if (constrain == "schema" && item.data.contains("schema")) {
    request.constraint.kind = ServeConstraint::Kind::kJsonSchema;
    request.constraint.text = item.data["schema"].dump();
  } else if (constrain == "tools") {
    request.tool_choice.kind = ToolChoice::Kind::kRequired;
  }
}

}  // namespace

std::string fill_template(const std::string& text, const Json& data) {
  std::string filled;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text[at] == '{' ? text.find('}', at) : std::string::npos;
    const auto found =
        end == std::string::npos ? data.end() : data.find(text.substr(at + 1, end - at - 1));
    if (found == data.end()) {
      filled += text[at++];
    } else {
      filled += text_of(*found);
      at = end + 1;
    }
  }
  return filled;
}

bool has_reference(const Item& item) {
  const auto found = item.data.find("reference");
  return found != item.data.end() && found->is_string() &&
         !found->get_ref<const std::string&>().empty();
}

ServeRequest answer_request(const Task& task, const Item& item, bool takes_messages) {
  ServeRequest request;
  if (is_conversation(task, takes_messages)) {
    request.messages = messages_of(task, item);
    request.chat = chat_options(item);
  } else {
    require_chat(task, item);
    request.text = text_prompt(task, item);
  }
  request.max_new_tokens = option_number(task, "max_new_tokens", 128);
  request.sampler.temperature = option_number(task, "temperature", 0.0f);
  request.sampler.seed = option_number(task, "seed", uint64_t{0});
  if (const auto found = task.options.find("stop"); found != task.options.end()) {
    for (const Json& one : *found) request.stop.push_back(text_of(one));
  }
  hold(task, item, request);
  return request;
}

ScoringRequest scoring_request(const Task& task, const Item& item, bool takes_messages) {
  ScoringRequest request;
  const bool is_chat = is_conversation(task, takes_messages);
  if (is_chat) {
    request.messages = messages_of(task, item);
    request.chat = chat_options(item);
  } else {
    request.text = text_prompt(task, item);
  }
  if (task.told.kind != TaskKind::kChoice) {
    request.continuations.push_back(item.data["reference"].get<std::string>());
    return request;
  }
  const std::string before = option_text(task, "before_choice", is_chat ? "" : " ");
  for (const Json& choice : item.data["choices"]) {
    request.continuations.push_back(before + text_of(choice));
  }
  return request;
}

}  // namespace vitrine::evaluation
