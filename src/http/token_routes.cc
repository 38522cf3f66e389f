// SPDX-License-Identifier: Apache-2.0
// Texts to tokens and back, and conversations to the text that the model reads. A body with
// "content" or "tokens" is llama-server's, one with "prompt" or "messages" vLLM's.
#include "core/json_text.h"
#include "core/utf8.h"
#include "http/plain_text.h"
#include "http/route.h"
#include "http/token_routes.json.h"
#include "serve/openai_fields.h"
#include "vitrine/chat_tools.h"
#include "vitrine/openai.h"

namespace vitrine::http {

namespace {

using nlohmann::json;
using serve::Fields;
using serve::refuse_field;

const Model& model_of(const House& house, const Fields& fields) {
  std::string name;
  fields.read("model", name);
  return house.server->model(house.find_model(name));
}

/// Reads a body's conversation.
ServeRequest read_conversation(const House& house, const Request& asked, const Fields& fields) {
  const OpenAiRequest read = read_openai_request(OpenAiRoute::kChatCompletions, asked.body);
  ServeRequest request = read.requests.front();
  request.model = house.find_model(read.model);
  request.tenant = asked.client.tenant;
  fields.read("add_generation_prompt", request.chat.add_generation_prompt);
  return request;
}

bool is_whole_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Character character = read_utf8(text, at);
    if (!character.is_valid) return false;
    at += character.size;
  }
  return true;
}

Json piece_json(const Tokenizer& tokenizer, int32_t id) {
  const std::string piece = tokenizer.token_bytes(id);
  if (is_whole_utf8(piece)) return {{"id", id}, {"piece", piece}};
  Json bytes = Json::array();
  for (const char byte : piece) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"id", id}, {"piece", bytes}};
}

std::vector<int32_t> encode_parts(const Tokenizer& tokenizer, const json& content, bool adds,
                                  bool parses) {
  const auto encode = [&](const json& text, bool adds_here) {
    const auto& bytes = text.get_ref<const std::string&>();
    return parses ? tokenizer.encode(bytes, adds_here) : plain_ids(tokenizer, bytes, adds_here);
  };
  if (content.is_string()) return encode(content, adds);
  constexpr const char* kForm = "a text, or a list of texts and ids";
  if (!content.is_array()) refuse_field("content", content, kForm);
  std::vector<int32_t> ids;
  for (const json& part : content) {
    if (part.is_string()) {
      const std::vector<int32_t> more = encode(part, adds && &part == &content.front());
      ids.insert(ids.end(), more.begin(), more.end());
    } else if (part.is_number_integer() && part >= 0 && part < int64_t{tokenizer.vocab_size()}) {
      ids.push_back(part.get<int32_t>());
    } else {
      refuse_field("content", part, kForm);
    }
  }
  return ids;
}

Reply tokenize_native(const Model& model, const Fields& fields) {
  bool adds = false, parses = true, has_pieces = false;
  fields.read("add_special", adds);
  fields.read("parse_special", parses);
  fields.read("with_pieces", has_pieces);
  const Tokenizer& tokenizer = model.tokenizer();
  std::vector<int32_t> ids;
  if (const json* content = fields.find("content")) {
    ids = encode_parts(tokenizer, *content, adds, parses);
  }
  if (!has_pieces) return json_reply({{"tokens", ids}});
  Json pieces = Json::array();
  for (const int32_t id : ids) pieces.push_back(piece_json(tokenizer, id));
  return json_reply({{"tokens", pieces}});
}

Reply tokenize(const House& house, const Request& request) {
  const json body = parse_json_object(request.body, "the body");
  const Fields fields(body);
  const Model& model = model_of(house, fields);
  const bool is_conversation = fields.has("messages");
  if (!is_conversation && !fields.has("prompt")) return tokenize_native(model, fields);
  const Tokenizer& tokenizer = model.tokenizer();
  bool adds = !is_conversation, has_texts = false;
  fields.read("add_special_tokens", adds);
  fields.read("return_token_strs", has_texts);
  std::vector<int32_t> ids;
  if (is_conversation) {
    ids = house.server->encode(read_conversation(house, request, fields));
    const std::vector<int32_t> begin = tokenizer.encode("", adds);
    if (!begin.empty()) ids.insert(ids.begin(), begin.front());
  } else {
    std::string text;
    fields.read("prompt", text);
    ids = tokenizer.encode(text, adds);
  }
  Json texts = nullptr;
  if (has_texts) {
    texts = Json::array();
    for (const int32_t id : ids) texts.push_back(tokenizer.token_text(id));
  }
  return json_reply({{"count", ids.size()},
                     {"max_model_len", model.options().max_context},
                     {"tokens", ids},
                     {"token_strs", texts}});
}

Reply detokenize(const House& house, const Request& request) {
  const json body = parse_json_object(request.body, "the body");
  const Fields fields(body);
  const Tokenizer& tokenizer = model_of(house, fields).tokenizer();
  std::vector<int32_t> ids;
  if (const json* tokens = fields.find("tokens")) {
    if (!tokens->is_array()) refuse_field("tokens", *tokens, "a list of ids");
    for (const json& id : *tokens) {
      if (!id.is_number_integer() || id < 0 || id >= int64_t{tokenizer.vocab_size()}) {
        refuse_field("tokens", id,
                     "ids of tokens from 0 to " + std::to_string(tokenizer.vocab_size() - 1));
      }
      ids.push_back(id.get<int32_t>());
    }
  }
  const std::string text = tokenizer.decode(ids, /*skip_special_tokens=*/false);
  return json_reply({{"content", text}, {"prompt", text}});  // llama-server's name, and vLLM's
}

Reply apply_template(const House& house, const Request& request) {
  const json body = parse_json_object(request.body, "the body");
  const ServeRequest read = read_conversation(house, request, Fields(body));
  const ChatTemplate* chat = house.server->model(read.model).chat_template();
  if (chat == nullptr) {
    refuse_field("messages", body["messages"],
                 "a model that has a chat template, which this one has not");
  }
  return json_reply({{"prompt", render_with_calls(*chat, read.messages, read.chat)}});
}

Reply count_chat_tokens(const House& house, const Request& request) {
  const json body = parse_json_object(request.body, "the body");
  const ServeRequest read = read_conversation(house, request, Fields(body));
  return json_reply(
      {{"object", "response.input_tokens"}, {"input_tokens", house.server->encode(read).size()}});
}

VITRINE_REGISTER_ROUTES(
    kTokenRoutesJson,
    {
        {"POST", "/tokenize", Access::kKey, tokenize},
        {"POST", "/detokenize", Access::kKey, detokenize},
        {"POST", "/apply-template", Access::kKey, apply_template},
        {"POST", "/v1/chat/completions/input_tokens", Access::kKey, count_chat_tokens},
        {"POST", "/chat/completions/input_tokens", Access::kKey, count_chat_tokens},
    });

}  // namespace

}  // namespace vitrine::http
