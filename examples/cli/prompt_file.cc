// SPDX-License-Identifier: Apache-2.0
#include "prompt_file.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <set>
#include <sstream>

#include "common.h"
#include "text_file.h"

namespace cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxPromptFileBytes = size_t{256} << 20;
constexpr int kMaxPromptDepth = 64;
constexpr const char* kConversationForm =
    "a conversation, as [{\"role\": \"user\", \"content\": \"Hi\"}], or an object with it in "
    "\"messages\"";

/// Reads the values of one file.
class PromptReader {
 public:
  PromptReader(const std::string& path, bool takes_texts)
      : path_(is_standard_input(path) ? "standard input" : path), takes_texts_(takes_texts) {}

  std::vector<GivenPrompt> read(const std::string& text) {
    place_ = path_ + ": ";
    const Json whole = parse(text);
    if (!whole.is_discarded()) {
      read_whole(whole);
    } else {
      read_lines(text);
    }
    if (prompts_.empty()) refuse(fmt::format("{} is empty; expected {}", path_, expected()));
    if (!ignored_.empty()) {
      write_note(fmt::format("{}: not used: {}; an object's keys are {}messages, tools and id",
                             path_, fmt::join(ignored_, ", "), takes_texts_ ? "prompt, " : ""));
    }
    return std::move(prompts_);
  }

 private:
  std::string expected() const {
    return takes_texts_ ? std::string(
                              "a prompt (a JSON string, or an object with it in "
                              "\"prompt\"), or ") +
                              kConversationForm
                        : kConversationForm;
  }

  [[noreturn]] void refuse_value(const std::string& found) const {
    refuse(fmt::format("{}{}; expected {}", place_, found, expected()));
  }

  Json parse(const std::string& text) const {
    if (nests_deeper_than(text, kMaxPromptDepth)) {
      refuse(fmt::format("{}JSON is nested too deep; expected {}", place_, expected()));
    }
    return Json::parse(text, nullptr, false);
  }

  static bool is_message(const Json& value) { return value.is_object() && value.contains("role"); }

  /// One value; an array of conversations holds several.
  void read_whole(const Json& value) {
    const bool is_list = value.is_array() && !value.empty() && !is_message(value.front()) &&
                         (value.front().is_structured() || takes_texts_);
    if (!is_list) return add(value);
    for (size_t i = 0; i < value.size(); ++i) {
      place_ = fmt::format("{}: value {}: ", path_, i + 1);
      add(value[i]);
    }
  }

  void read_lines(const std::string& text) {
    std::istringstream lines(text);
    int64_t number = 0;
    for (std::string line; std::getline(lines, line);) {
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      place_ = fmt::format("{}: line {}: ", path_, number);
      const Json value = parse(line);
      if (value.is_discarded()) refuse_value("not valid JSON");
      add(value);
    }
  }

  void add(const Json& value) {
    GivenPrompt prompt;
    prompt.place = place_;
    if (value.is_array()) {
      read_messages(value, prompt);
    } else if (value.is_string() && takes_texts_) {
      prompt.text = value.get<std::string>();
    } else if (value.is_object() && value.contains("messages")) {
      if (value.contains("prompt")) refuse_value("both \"messages\" and \"prompt\"");
      read_messages(value["messages"], prompt);
      read_tools(value, prompt);
    } else if (value.is_object() && value.contains("prompt") && takes_texts_) {
      if (!value["prompt"].is_string()) {
        refuse_value(fmt::format("\"prompt\" is {}", value["prompt"].type_name()));
      }
      prompt.text = value["prompt"].get<std::string>();
    } else {
      refuse_value(fmt::format(
          "found {}", is_message(value) ? "a message alone, outside an array" : found_name(value)));
    }
    if (value.is_object()) note_keys(value, prompt);
    if (!prompt.is_conversation() && prompt.text.empty()) refuse_value("the prompt is empty");
    prompts_.push_back(std::move(prompt));
  }

  static std::string found_name(const Json& value) {
    if (value.is_object()) return "an object without \"messages\"";
    return value.type_name();
  }

  void note_keys(const Json& value, GivenPrompt& prompt) {
    for (const auto& [key, part] : value.items()) {
      if (key == "id") prompt.id = part;
      const bool is_used = key == "id" || key == "messages" || key == "prompt" ||
                           (key == "tools" && prompt.is_conversation());
      if (!is_used && ignored_.size() < 8) ignored_.insert(key);
    }
  }

  void read_tools(const Json& value, GivenPrompt& prompt) const {
    if (!value.contains("tools") || value["tools"].is_null()) return;
    if (!value["tools"].is_array()) {
      refuse(fmt::format("{}\"tools\" is {}; expected an array of tool definitions", place_,
                         value["tools"].type_name()));
    }
    if (!value["tools"].empty()) prompt.tools_json = value["tools"].dump();
  }

  void read_messages(const Json& messages, GivenPrompt& prompt) const {
    if (!messages.is_array() || messages.empty()) {
      refuse_value(messages.is_array() ? "no message" : "\"messages\" is no array");
    }
    for (size_t i = 0; i < messages.size(); ++i) {
      const std::string name = fmt::format("{}messages[{}]", place_, i);
      const Json& message = messages[i];
      if (!message.is_object()) {
        refuse(fmt::format("{} is {}; expected an object with \"role\" and \"content\"", name,
                           message.type_name()));
      }
      if (!message.contains("role") || !message["role"].is_string()) {
        refuse(fmt::format("{}.role is {}; expected a string, as \"user\"", name,
                           message.contains("role") ? message["role"].type_name() : "not there"));
      }
      vitrine::ChatMessage& read = prompt.messages.emplace_back();
      read.role = message["role"].get<std::string>();
      Json fields = Json::object();
      for (const auto& [key, part] : message.items()) {
        if (key != "role" && key != "content") fields[key] = part;
      }
      read.content = content_of(message, !fields.empty(), name);
      if (!fields.empty()) read.fields_json = fields.dump();
    }
  }

  /// A text, or OpenAI's list of parts, as long as these are text.
  static std::string content_of(const Json& message, bool has_fields, const std::string& name) {
    const Json content = message.contains("content") ? message["content"] : Json();
    if (content.is_string()) return content.get<std::string>();
    if (content.is_null() && has_fields) return "";  // calls of tools
    if (!content.is_array()) {
      refuse(fmt::format("{}.content is {}; expected a string", name,
                         content.is_null() ? "not there" : content.type_name()));
    }
    std::string text;
    for (size_t i = 0; i < content.size(); ++i) {
      const Json& part = content[i];
      const bool is_text = part.is_object() && part.value("type", Json("text")) == "text" &&
                           part.contains("text") && part["text"].is_string();
      if (!is_text) {
        refuse(
            fmt::format("{}.content[{}] is no text; expected {{\"type\": \"text\", \"text\": …}}: "
                        "pictures and sounds are not read",
                        name, i));
      }
      if (i > 0) text += '\n';
      text += part["text"].get<std::string>();
    }
    return text;
  }

  const std::string path_;
  const bool takes_texts_;
  std::string place_;
  std::vector<GivenPrompt> prompts_;
  std::set<std::string> ignored_;  // keys of objects
};

}  // namespace

void PromptFileOptions::add_to(CLI::App& command) {
  command
      .add_option("--messages", messages,
                  "a file with a conversation, JSON as of OpenAI's API ([{\"role\": …, "
                  "\"content\": …}]), which the model's chat template makes a prompt of; of "
                  "several, one a line, as --prompts; - reads standard input")
      ->check(not_empty());
  command
      .add_option("--prompts", prompts,
                  "a file with a prompt or a conversation a line, as JSON; answers are JSON "
                  "lines, in their order; - reads standard input")
      ->check(not_empty());
  parallel_option =
      command.add_option("--parallel", parallel, "prompts of --prompts that are answered at once")
          ->check(CLI::Range(1, 1024))
          ->capture_default_str();
}

void PromptFileOptions::note_idle() const {
  if (is_given() || parallel_option->count() == 0) return;
  write_note("warning: --parallel does nothing without --prompts FILE");
}

NamedPath PromptFileOptions::input() const {
  return messages.empty() ? NamedPath("--prompts", prompts) : NamedPath("--messages", messages);
}

std::vector<GivenPrompt> PromptFileOptions::read() const {
  const std::string& path = input().second;
  return PromptReader(path, messages.empty()).read(read_text_file(path, kMaxPromptFileBytes));
}

}  // namespace cli
