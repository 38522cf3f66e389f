// SPDX-License-Identifier: Apache-2.0
#include "chat_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "audit_run.h"
#include "common.h"
#include "private_file.h"

namespace cli {

namespace {

using Json = nlohmann::json;
using vitrine::Error;
using vitrine::ErrorKind;

constexpr uint64_t kMaxBytes = uint64_t{32} << 20;
constexpr int kMaxDepth = 4;
constexpr int kVersion = 1;
constexpr const char* kSignature = "vitrine_session";
constexpr size_t kMaxShown = 40;

/// The fields of a file from outside, one after the other.
class Fields {
 public:
  Fields(const std::string& path, const Json& json) : path_(path), json_(json) {}

  [[noreturn]] void fail(const std::string& field, const Json* found,
                         const std::string& expected) const {
    std::string text = "nothing";
    if (found != nullptr) {
      text = plain(found->dump(-1, ' ', true, Json::error_handler_t::replace));
      if (text.size() > kMaxShown) text = text.substr(0, kMaxShown) + "...";
    }
    throw Error(ErrorKind::kBadFile,
                fmt::format("{}: {} is {}; expected {}", path_, plain(field), text, expected));
  }

  const Json& take(const std::string& name, Json::value_t type, const std::string& expected) const {
    const auto found = json_.find(name);
    if (found == json_.end()) fail(name, nullptr, expected);
    if (found->type() != type) fail(name, &*found, expected);
    return *found;
  }

  uint64_t number(const std::string& name, uint64_t max) const {
    const std::string expected = fmt::format("a number from 0 to {}", max);
    const Json& json = take(name, Json::value_t::number_unsigned, expected);
    if (json.get<uint64_t>() > max) fail(name, &json, expected);
    return json.get<uint64_t>();
  }

  uint64_t seed() const {
    const std::string expected = fmt::format("a number from 0 to {}, or its digits as a text",
                                             std::numeric_limits<uint64_t>::max());
    const auto found = json_.find("seed");
    if (found == json_.end()) fail("seed", nullptr, expected);
    uint64_t seed = 0;
    if (!read_seed(*found, seed)) fail("seed", &*found, expected);
    return seed;
  }

  /// An object whose values are text.
  std::vector<std::pair<std::string, std::string>> texts(const std::string& name) const {
    std::vector<std::pair<std::string, std::string>> pairs;
    for (const auto& [key, value] :
         take(name, Json::value_t::object, "an object of texts").items()) {
      if (!value.is_string()) fail(name + "." + key, &value, "a text");
      pairs.emplace_back(key, value.get<std::string>());
    }
    return pairs;
  }

 private:
  const std::string& path_;
  const Json& json_;
};

Json object_of(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json json = Json::object();
  for (const auto& [name, text] : pairs) json[name] = text;
  return json;
}

vitrine::SamplerOptions sampler_of(const Fields& fields) {
  vitrine::SamplerOptions sampler;
  for (const auto& [name, text] : fields.texts("sampler")) {
    const Json value = text;
    try {
      if (name == "seed") fields.fail("sampler.seed", &value, "the seed in its own field");
      vitrine::set_sampler_option(sampler, name, text);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kBadFile) throw;
      fields.fail("sampler." + name, &value,
                  std::string("one of the sampler's options (") + plain(error.what()) + ")");
    }
  }
  sampler.seed = fields.seed();
  return sampler;
}

/// An answer's reasoning and calls: the text of a JSON object, which the template reads.
std::string fields_text(const Fields& fields, const std::string& name, const Json& message) {
  const auto found = message.find("fields");
  if (found == message.end()) return {};
  const auto* text = found->get_ptr<const std::string*>();
  if (text == nullptr || !text->starts_with('{') || !Json::accept(*text)) {
    fields.fail(name + ".fields", &*found, "the text of a JSON object");
  }
  return *text;
}

/// Who may speak behind these messages.
std::vector<std::string> roles_behind(const std::vector<vitrine::ChatMessage>& messages) {
  if (messages.empty()) return {"system", "user"};
  const vitrine::ChatMessage& last = messages.back();
  if (last.role == "user") return {"assistant"};
  if (last.role == "tool") return {"assistant", "tool"};
  const Json fields = Json::parse(last.fields_json, nullptr, /*allow_exceptions=*/false);
  const bool has_calls = fields.is_object() && fields.contains("tool_calls");
  if (last.role == "assistant" && has_calls) return {"user", "tool"};
  return {"user"};
}

std::vector<vitrine::ChatMessage> messages_of(const Fields& fields) {
  std::vector<vitrine::ChatMessage> messages;
  const Json& list = fields.take("messages", Json::value_t::array, "a list of messages");
  for (size_t index = 0; index < list.size(); ++index) {
    const std::string name = fmt::format("messages[{}]", index);
    const Json& json = list[index];
    if (!json.is_object()) fields.fail(name, &json, "an object with role and content");
    for (const char* part : {"role", "content"}) {
      const auto found = json.find(part);
      if (found == json.end()) fields.fail(name + "." + part, nullptr, "a text");
      if (!found->is_string()) fields.fail(name + "." + part, &*found, "a text");
    }
    const std::string role = json["role"].get<std::string>();
    const std::vector<std::string> roles = roles_behind(messages);
    if (std::ranges::find(roles, role) == roles.end()) {
      fields.fail(name + ".role", &json["role"],
                  fmt::format("\"{}\"", fmt::join(roles, "\" or \"")));
    }
    messages.push_back({role, json["content"].get<std::string>(), fields_text(fields, name, json)});
  }
  if (!messages.empty() && messages.back().role == "user") {
    fields.fail("messages", &list, "the assistant's answer at the end");
  }
  return messages;
}

std::vector<int32_t> tokens_of(const Fields& fields, int64_t vocab_size) {
  std::vector<int32_t> tokens;
  const Json& list = fields.take("tokens", Json::value_t::array, "a list of ids");
  tokens.reserve(list.size());
  for (size_t index = 0; index < list.size(); ++index) {
    const Json& json = list[index];
    if (!json.is_number_unsigned() || json.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
      fields.fail(fmt::format("tokens[{}]", index), &json,
                  fmt::format("an id from 0 to {}", vocab_size - 1));
    }
    tokens.push_back(json.get<int32_t>());
  }
  return tokens;
}

/// Only a session, or nothing at all, may be replaced by one.
void require_session_or_nothing(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return require_output_folder("/save", path);
  const std::string begin = fmt::format("{{\"{}\":", kSignature);
  bool is_session = false;
  if (std::filesystem::is_regular_file(path, error) &&
      std::filesystem::file_size(path, error) <= kMaxBytes) {
    is_session = vitrine::read_text_file(path, kMaxBytes).starts_with(begin);
  }
  if (!is_session) {
    refuse(path + ": is there and no session; expected a new name, or a session to replace");
  }
}

}  // namespace

void write_session(const std::string& path, const ChatSession& session) {
  require_session_or_nothing(path);
  nlohmann::ordered_json json;
  json[kSignature] = kVersion;  // first: it tells a session from other files
  json["model"] = object_of(session.model);
  json["sampler"] = object_of(vitrine::sampler_option_values(session.sampler));
  json["seed"] = seed_json(session.sampler.seed);
  json["branch"] = session.branch;
  json["trace_id"] = session.trace_id;
  json["settings"] = object_of(session.settings);
  json["messages"] = Json::array();
  for (const vitrine::ChatMessage& message : session.messages) {
    json["messages"].push_back({{"role", message.role}, {"content", message.content}});
    if (!message.fields_json.empty()) json["messages"].back()["fields"] = message.fields_json;
  }
  json["tokens"] = session.tokens;
  const std::string text =
      json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  if (text.size() > kMaxBytes) {
    refuse(fmt::format("{}: the session takes {}; expected at most {}", path,
                       format_bytes(text.size()), format_bytes(kMaxBytes)));
  }
  write_private_file(path, text);
}

ChatSession read_session(const std::string& path, int64_t vocab_size) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    refuse(fmt::format("session '{}' is {}; expected a file that /save wrote", path,
                       std::filesystem::exists(path, error) ? "not a file" : "not there"));
  }
  const Json json = parse_shallow_json(path, kMaxBytes, kMaxDepth, "a session");
  if (!json.is_object() || !json.contains(kSignature)) {
    throw Error(ErrorKind::kBadFile,
                path + ": " +
                    (json.is_discarded() ? "is not valid JSON" : "has no \"vitrine_session\"") +
                    "; expected a file that /save wrote");
  }
  const Fields fields(path, json);
  if (json[kSignature] != kVersion) {
    fields.fail(kSignature, &json[kSignature], fmt::format("version {}", kVersion));
  }
  ChatSession session;
  session.model = fields.texts("model");
  if (session.model.empty()) {
    fields.fail("model", &json["model"], "the SHA-256 of the model's files");
  }
  session.sampler = sampler_of(fields);
  session.branch = static_cast<uint32_t>(fields.number("branch", kMaxChatBranch - 1));
  const Json& trace = fields.take("trace_id", Json::value_t::string, "a text");
  session.trace_id = trace.get<std::string>();
  if (!session.trace_id.empty() && !vitrine::is_trace_id(session.trace_id)) {
    fields.fail("trace_id", &trace, "32 hexadecimal digits in lower case, or nothing");
  }
  session.settings = fields.texts("settings");
  session.messages = messages_of(fields);
  session.tokens = tokens_of(fields, vocab_size);
  return session;
}

std::string other_settings(const ChatSession& one, const ChatSession& other) {
  std::map<std::string, std::string> left(one.settings.begin(), one.settings.end());
  std::map<std::string, std::string> right(other.settings.begin(), other.settings.end());
  std::vector<std::string> names;
  for (const auto& [name, text] : left) {
    const auto found = right.find(name);
    if (found == right.end() || found->second != text) names.push_back(plain(name));
  }
  for (const auto& [name, text] : right) {
    if (!left.contains(name)) names.push_back(plain(name));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace cli
