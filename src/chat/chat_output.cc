// SPDX-License-Identifier: Apache-2.0
#include "vitrine/chat_output.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/registry.h"
#include "output_format.h"

namespace vitrine {

namespace chat {

namespace {

core::Registry<std::string, OutputFormat>& output_format_registry() {
  static core::Registry<std::string, OutputFormat> registry("the format of answers");
  return registry;
}

/// The format whose signs all are there; nothing where none is.
std::optional<OutputFormat> fitting_format(const std::function<bool(std::string_view)>& has) {
  std::optional<OutputFormat> best;
  for (const OutputFormat& format : output_formats()) {
    if (format.signs.empty() || (best && best->rank <= format.rank)) continue;
    if (std::ranges::all_of(format.signs, has)) best = format;
  }
  return best;
}

}  // namespace

bool register_output_format(const OutputFormat& format) {
  return output_format_registry().add(std::string(format.name), format);
}

const OutputFormat* find_output_format(std::string_view name) {
  return output_format_registry().find(name);
}

std::vector<OutputFormat> output_formats() { return output_format_registry().entries(); }

}  // namespace chat

std::vector<std::string> chat_output_formats() {
  std::vector<std::string> names;
  for (const chat::OutputFormat& format : chat::output_formats()) names.emplace_back(format.name);
  return names;
}

std::string find_chat_output_format(std::string_view template_source) {
  const auto format = chat::fitting_format(
      [&](std::string_view sign) { return template_source.find(sign) != template_source.npos; });
  return std::string(format ? format->name : "plain");
}

std::string find_chat_output_format(const ChatTemplate& chat, const Tokenizer& tokenizer) {
  std::string name = find_chat_output_format(chat.source());
  if (name != "plain") return name;
  const auto format =
      chat::fitting_format([&](std::string_view sign) { return tokenizer.token_id(sign) >= 0; });
  return std::string(format ? format->name : "plain");
}

ChatMessage ChatAnswer::message() const {
  std::string fields;
  const auto add = [&](const char* name, const std::string& json) {
    fields += fields.empty() ? "{\"" : ", \"";
    fields += std::string(name) + "\": " + json;
  };
  if (!reasoning.empty()) {
    const std::string text = chat::json_text(reasoning);
    for (const char* name : {"reasoning_content", "reasoning", "thinking"}) add(name, text);
  }
  std::string calls;
  for (const ToolCall& call : tool_calls) {
    calls += calls.empty() ? "[{\"type\": \"function\"" : ", {\"type\": \"function\"";
    if (!call.id.empty()) calls += ", \"id\": " + chat::json_text(call.id);
    const bool is_json = nlohmann::json::accept(call.arguments);
    calls += ", \"function\": {\"name\": " + chat::json_text(call.name) +
             ", \"arguments\": " + (is_json ? call.arguments : chat::json_text(call.arguments)) +
             "}}";
  }
  if (!calls.empty()) add("tool_calls", calls + "]");
  return {"assistant", content, fields.empty() ? "" : fields + "}"};
}

std::string ChatAnswer::message_json() const {
  const ChatMessage whole = message();
  const std::string fields = whole.fields_json.empty() ? "}" : ", " + whole.fields_json.substr(1);
  return "{\"role\": \"assistant\", \"content\": " + chat::json_text(content) + fields;
}

struct ChatOutputParser::State {
  State(const chat::OutputFormat& used, const ChatOutputOptions& options)
      : format(used), tools(options.tools_json), reader(used.make(options.prompt, tools)) {}

  void read(bool is_end) {
    size_t taken = 0;
    for (bool wants_all = reader->wants_all();;) {
      const std::string_view rest = std::string_view(pending).substr(taken);
      // What is found in a long text is found again in the rest of it: its length is bounded.
      const std::string_view text = wants_all ? rest : rest.substr(0, kMaxWindow);
      const size_t size = reader->read(text, is_end && text.size() == rest.size(), sink);
      const bool wanted_all = std::exchange(wants_all, reader->wants_all());
      if (size == 0 && (wanted_all || !wants_all)) break;
      taken += size;
    }
    pending.erase(0, taken);
  }

  static constexpr size_t kMaxWindow = 4096;
  static constexpr size_t kMaxPiece = 4096;

  const chat::OutputFormat format;
  const chat::ToolTypes tools;
  const std::unique_ptr<chat::OutputReader> reader;
  ChatAnswer answer;
  chat::OutputSink sink{answer};
  std::string pending;
};

ChatOutputParser::ChatOutputParser(std::string_view format, const ChatOutputOptions& options) {
  const chat::OutputFormat* used = chat::find_output_format(format);
  if (used == nullptr) {
    std::string names;
    for (const std::string& name : chat_output_formats()) {
      names += (names.empty() ? "" : ", ") + name;
    }
    throw Error(ErrorKind::kInvalidArgument,
                "the format of answers is '" + std::string(format) + "'; expected one of " + names);
  }
  state_ = std::make_unique<State>(*used, options);
}

ChatOutputParser::ChatOutputParser(ChatOutputParser&&) noexcept = default;
ChatOutputParser& ChatOutputParser::operator=(ChatOutputParser&&) noexcept = default;
ChatOutputParser::~ChatOutputParser() = default;

std::vector<ChatDelta> ChatOutputParser::add(std::string_view piece) {
  do {
    state_->pending += piece.substr(0, State::kMaxPiece);
    piece.remove_prefix(std::min(piece.size(), State::kMaxPiece));
    state_->read(/*is_end=*/false);
  } while (!piece.empty());
  return state_->sink.take_deltas();
}

std::vector<ChatDelta> ChatOutputParser::finish() {
  state_->read(/*is_end=*/true);
  state_->sink.finish();
  return state_->sink.take_deltas();
}

const ChatAnswer& ChatOutputParser::answer() const { return state_->answer; }

std::string_view ChatOutputParser::format() const { return state_->format.name; }

bool ChatOutputParser::is_mark(std::string_view token) const {
  return std::ranges::find(state_->format.marks, token) != state_->format.marks.end();
}

}  // namespace vitrine
