// SPDX-License-Identifier: Apache-2.0
// The part of tokenizer_config.json that says how a conversation becomes a prompt.
#include <filesystem>

#include "checkpoint_impl.h"
#include "gguf_model.h"
#include "text.h"

namespace vitrine {

namespace {

using Json = nlohmann::json;

// A published file is a few kilobytes; with tens of thousands of added tokens, some megabytes.
constexpr uint64_t kMaxTokenizerConfigBytes = uint64_t{64} << 20;
constexpr uint64_t kMaxTemplateBytes = uint64_t{4} << 20;

/// `place`: of an entry's name, where it came from.
template <typename Place>
std::string dump(const Json& json, const Place& place) {
  std::string part;
  try {
    for (const auto& [name, value] : json.items()) {
      part = name;
      static_cast<void>(value.dump());
    }
    return json.dump();
  } catch (const Json::exception&) {  // nlohmann writes nothing that is no UTF-8
    checkpoint::throw_bad_file(place(part) + " holds bytes that are no UTF-8; expected text");
  }
}

}  // namespace

std::string Checkpoint::tokenizer_config_json() const {
  if (impl_->gguf_metadata) return checkpoint::gguf_tokenizer_config_json(*impl_->gguf_metadata);
  const std::string config_path = impl_->path + "/tokenizer_config.json";
  const std::string tokens_path = impl_->path + "/special_tokens_map.json";
  const std::string template_path = impl_->path + "/chat_template.jinja";
  Json config = Json::object();
  bool has_any = false;
  if (checkpoint::file_exists(config_path)) {
    config = parse_json_object(read_text_file(config_path, kMaxTokenizerConfigBytes), config_path);
    has_any = true;
  }
  if (checkpoint::file_exists(tokens_path)) {
    const Json tokens =
        parse_json_object(read_text_file(tokens_path, kMaxTokenizerConfigBytes), tokens_path);
    for (const auto& [key, value] : tokens.items()) {
      if (!config.contains(key)) config[key] = value;
    }
    has_any = true;
  }
  if (checkpoint::file_exists(template_path)) {
    config["chat_template"] = read_text_file(template_path, kMaxTemplateBytes);
    has_any = true;
  }
  const auto place = [&](const std::string&) { return template_path + ":"; };
  return has_any ? dump(config, place) : std::string();
}

std::string Checkpoint::tokenizer_config_name() const {
  if (is_gguf()) return impl_->path + " (tokenizer.chat_template)";
  const std::string template_path = impl_->path + "/chat_template.jinja";
  return checkpoint::file_exists(template_path) ? template_path
                                                : impl_->path + "/tokenizer_config.json";
}

namespace checkpoint {

std::string gguf_tokenizer_config_json(const GgufMetadata& metadata) {
  Json config = Json::object();
  const GgufArray* tokens = metadata.array("tokenizer.ggml.tokens", GgufType::kString);
  for (const auto& [from, to] : {std::pair{"bos_token_id", "bos_token"},
                                 {"eos_token_id", "eos_token"},
                                 {"unknown_token_id", "unk_token"},
                                 {"padding_token_id", "pad_token"}}) {
    if (tokens == nullptr) continue;
    const auto last = static_cast<int64_t>(tokens->count) - 1;
    const auto id = metadata.token_id(std::string("tokenizer.ggml.") + from, last);
    if (!id) continue;
    config[to] = std::string(tokens->string(static_cast<uint64_t>(*id)));
  }
  constexpr std::string_view kTemplate = "tokenizer.chat_template";
  const std::optional<std::string> single = metadata.string(kTemplate);
  if (single) config["chat_template"] = *single;
  const GgufArray* names = metadata.array("tokenizer.chat_templates", GgufType::kString);
  if (names != nullptr && names->count > 0) {
    Json list = Json::array();
    if (single) list.push_back({{"name", "default"}, {"template", *single}});
    for (uint64_t i = 0; i < names->count; ++i) {
      const std::string name(names->string(i));
      const auto text = metadata.required_string(std::string(kTemplate) + "." + name);
      list.push_back({{"name", name}, {"template", text}});
    }
    config["chat_template"] = std::move(list);
  }
  const auto place = [&](const std::string& name) {
    return metadata.file() + ": key '" +
           (name == "chat_template" ? std::string(kTemplate) : "tokenizer.ggml.tokens") + "'" +
           (name == "chat_template" ? "" : ", of which '" + name + "' is one,");
  };
  return config.empty() ? std::string() : dump(config, place);
}

}  // namespace checkpoint

}  // namespace vitrine
