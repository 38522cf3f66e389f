// SPDX-License-Identifier: Apache-2.0
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "vitrine/openai.h"

namespace vitrine {

namespace {

using OrderedJson = nlohmann::ordered_json;

/// What one request was answered.
struct Choice {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::optional<ServeEvent> last;
};

std::string dump(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

const char* finish_reason(const ServeEvent& last) {
  if (last.answer != nullptr && !last.answer->tool_calls.empty()) return "tool_calls";
  switch (last.reason) {
    case StopReason::kLength:
    case StopReason::kContextFull:
    case StopReason::kLengthConstrained: return "length";
    default: return "stop";
  }
}

}  // namespace

struct OpenAiResponse::Impl {
  OpenAiRequest request;
  const Tokenizer& tokenizer;
  std::string model, id;
  int64_t created;
  std::vector<Choice> choices;

  bool is_chat() const { return request.route == OpenAiRoute::kChatCompletions; }

  std::string token_text(int32_t token) const {
    return token >= 0 && token < tokenizer.vocab_size() ? tokenizer.token_bytes(token) : "";
  }

  OrderedJson token_entry(int32_t token, double logprob) const {
    const std::string bytes = token_text(token);
    OrderedJson values = OrderedJson::array();
    for (const char byte : bytes) values.push_back(static_cast<unsigned char>(byte));
    return {{"token", bytes}, {"logprob", logprob}, {"bytes", values}};
  }

  OrderedJson chat_logprobs(const Choice& choice) const {
    OrderedJson content = OrderedJson::array();
    for (const TokenLogprobs& one : choice.logprobs) {
      OrderedJson entry = token_entry(one.token, one.logprob);
      entry["top_logprobs"] = OrderedJson::array();
      for (const auto& [token, logprob] : one.best) {
        entry["top_logprobs"].push_back(token_entry(token, logprob));
      }
      content.push_back(entry);
    }
    return {{"content", content}, {"refusal", nullptr}};
  }

  OrderedJson text_logprobs(const Choice& choice, size_t offset) const {
    OrderedJson tokens = OrderedJson::array(), values = OrderedJson::array(),
                best = OrderedJson::array(), offsets = OrderedJson::array();
    for (const TokenLogprobs& one : choice.logprobs) {
      tokens.push_back(token_text(one.token));
      values.push_back(one.logprob);
      OrderedJson of = OrderedJson::object();
      for (const auto& [token, logprob] : one.best) of[token_text(token)] = logprob;
      best.push_back(of);
      offsets.push_back(offset);
      offset += token_text(one.token).size();
    }
    return {{"tokens", tokens},
            {"token_logprobs", values},
            {"top_logprobs", best},
            {"text_offset", offsets}};
  }

  OrderedJson message(const Choice& choice, size_t index) const {
    OrderedJson message = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
    if (!choice.last || choice.last->answer == nullptr) return message;
    const ChatAnswer& answer = *choice.last->answer;
    message["content"] = answer.content;
    if (!answer.reasoning.empty()) {
      message["reasoning_content"] = answer.reasoning;
      message["reasoning"] = answer.reasoning;
    }
    for (size_t i = 0; i < answer.tool_calls.size(); ++i) {
      const ToolCall& call = answer.tool_calls[i];
      const std::string made = "call_" + id + "_" + std::to_string(index) + "_" + std::to_string(i);
      message["tool_calls"].push_back(
          {{"id", call.id.empty() ? made : call.id},
           {"type", "function"},
           {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
      if (answer.content.empty()) message["content"] = nullptr;
    }
    return message;
  }

  OrderedJson choice_json(size_t index) const {
    const Choice& choice = choices[index];
    OrderedJson one = {{"index", index}};
    const ServeRequest& asked = request.requests[index];
    if (is_chat()) {
      one["message"] = message(choice, index);
      one["logprobs"] = asked.logprobs >= 0 ? chat_logprobs(choice) : OrderedJson(nullptr);
    } else {
      const std::string prompt = !request.is_echoed     ? ""
                                 : asked.tokens.empty() ? asked.text
                                                        : tokenizer.decode(asked.tokens, false);
      one["text"] = prompt + choice.text;
      one["logprobs"] =
          asked.logprobs >= 0 ? text_logprobs(choice, prompt.size()) : OrderedJson(nullptr);
    }
    one["finish_reason"] =
        choice.last ? OrderedJson(finish_reason(*choice.last)) : OrderedJson(nullptr);
    if (request.has_token_ids) one["token_ids"] = choice.tokens;
    return one;
  }

  OrderedJson usage() const {
    int64_t prompt = 0, cached = 0, made = 0;
    for (size_t i = 0; i < choices.size(); ++i) {
      if (!choices[i].last) continue;
      const ServeCounts& counts = choices[i].last->counts;
      made += counts.new_tokens;
      if (i % static_cast<size_t>(request.choices) != 0) continue;  // a prompt counts once
      prompt += counts.prompt_tokens;
      cached += counts.cached_tokens;
    }
    return {{"prompt_tokens", prompt},
            {"completion_tokens", made},
            {"total_tokens", prompt + made},
            {"prompt_tokens_details", {{"cached_tokens", cached}}}};
  }
};

OpenAiResponse::OpenAiResponse(const OpenAiRequest& request, const Tokenizer& tokenizer,
                               std::string model, std::string id, int64_t created)
    : impl_(new Impl{request, tokenizer, std::move(model), std::move(id), created, {}}) {
  impl_->choices.resize(request.requests.size());
}
OpenAiResponse::OpenAiResponse(OpenAiResponse&&) noexcept = default;
OpenAiResponse::~OpenAiResponse() = default;

void OpenAiResponse::add(size_t request, const ServeEvent& event) {
  Choice& choice = impl_->choices.at(request);
  if (event.kind == ServeEvent::Kind::kRestart) choice = {};
  choice.text += event.text;
  if (event.kind == ServeEvent::Kind::kToken) choice.tokens.push_back(event.token);
  if (event.logprobs) choice.logprobs.push_back(*event.logprobs);
  if (event.kind == ServeEvent::Kind::kFinish) choice.last = event;
}

const Error* OpenAiResponse::error() const {
  for (const Choice& choice : impl_->choices) {
    if (choice.last && choice.last->error) return &*choice.last->error;
  }
  return nullptr;
}

std::string OpenAiResponse::body() const {
  const Impl& impl = *impl_;
  OrderedJson body = {{"id", impl.id},
                      {"object", impl.is_chat() ? "chat.completion" : "text_completion"},
                      {"created", impl.created},
                      {"model", impl.model},
                      {"choices", OrderedJson::array()}};
  for (size_t i = 0; i < impl.choices.size(); ++i) body["choices"].push_back(impl.choice_json(i));
  body["usage"] = impl.usage();
  return dump(body);
}

int openai_status(const Error& error) {
  switch (error.kind()) {
    case ErrorKind::kInvalidArgument:
    case ErrorKind::kBadFile: return 400;
    case ErrorKind::kUnsupported: return 501;
    case ErrorKind::kOutOfMemory: return 429;
    case ErrorKind::kUnavailable:
    case ErrorKind::kCancelled: return 503;
    case ErrorKind::kIo:
    case ErrorKind::kInternal: break;
  }
  return 500;
}

std::string openai_error_body(const Error& error) {
  const std::string message = error.what();
  // A message about a field begins with its name in quotes.
  OrderedJson param = nullptr;
  if (message.starts_with('\'')) {
    param = message.substr(1, message.find('\'', 1) - 1);
  }
  const int status = openai_status(error);
  const char* type = status == 400   ? "invalid_request_error"
                     : status == 429 ? "rate_limit_error"
                     : status == 501 ? "not_supported_error"
                     : status == 503 ? "unavailable_error"
                                     : "server_error";
  return dump(
      {{"error", {{"message", message}, {"type", type}, {"param", param}, {"code", status}}}});
}

}  // namespace vitrine
