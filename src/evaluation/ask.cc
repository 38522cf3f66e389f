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

std::string item_text(const Item& item, const char* name, const std::string& otherwise) {
  const auto found = item.data.find(name);
  return found == item.data.end() ? otherwise : text_of(*found);
}

std::vector<ChatMessage> messages_of(const Task& task, const Item& item) {
  std::vector<ChatMessage> messages;
  const std::string system = option_text(task, "system", "");
  if (!system.empty()) messages.push_back({"system", system});
  if (const auto found = item.data.find("messages"); found != item.data.end()) {
    for (const Json& one : *found) messages.push_back(message_of(one));
    return messages;
  }
  messages.push_back({"user", item_text(item, "prompt", "")});
  return messages;
}

// What is asked where no template writes conversations.
std::string text_prompt(const Task& task, const Item& item) {
  const std::string system = option_text(task, "system", "");
  std::string text = system.empty() ? "" : system + "\n\n";
  if (const auto found = item.data.find("messages"); found != item.data.end()) {
    for (const Json& one : *found) {
      const ChatMessage message = message_of(one);
      text += message.role + ": " + message.content + "\n";
    }
    return text + "assistant:" + item_text(item, "answer_start", "");
  }
  return text + item_text(item, "plain_prompt", item_text(item, "prompt", "")) +
         item_text(item, "answer_start", "");
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
    request.tool_choice.kind = ToolChoice::Kind::kAuto;  // to call nothing may be right
  } else if (constrain == "calls") {
    request.tool_choice.kind = ToolChoice::Kind::kRequired;
  }
}

}  // namespace

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
    request.answer_start = item_text(item, "answer_start", "");
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
  if (is_conversation(task, takes_messages)) {
    request.messages = messages_of(task, item);
    request.chat = chat_options(item);
  } else {
    request.text = text_prompt(task, item);
  }
  if (task.told.kind != TaskKind::kChoice) {
    request.continuations.push_back(item.data["reference"].get<std::string>());
    return request;
  }
  for (const Json& choice : item.data["choices"]) request.continuations.push_back(text_of(choice));
  return request;
}

}  // namespace vitrine::evaluation
