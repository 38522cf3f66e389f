// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <utility>

#include "serve/openai_parts.h"
#include "vitrine/openai.h"

namespace vitrine {

using serve::OrderedJson;

namespace {

/// What one request was answered.
struct Choice {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<TokenLogprobs> logprobs;
  std::optional<ServeEvent> prompt;  // of ServeRequest::prompt_logprobs
  std::optional<ServeEvent> last;
  OrderedJson fields = OrderedJson::object();
};

}  // namespace

struct OpenAiResponse::Impl {
  OpenAiRequest request;
  const Tokenizer& tokenizer;
  std::string model, id;
  int64_t created;
  std::vector<Choice> choices;

  bool is_chat() const { return request.route == OpenAiRoute::kChatCompletions; }

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
      message["tool_calls"].push_back(
          {{"id", serve::openai_call_id(call.id, id, index, i)},
           {"type", "function"},
           {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
      if (answer.content.empty()) message["content"] = nullptr;
    }
    return message;
  }

  OrderedJson text_logprobs(const Choice& choice) const {
    serve::TextLogprobs lists(tokenizer);
    if (request.is_echoed && choice.prompt) lists.add_prompt(*choice.prompt);
    for (const TokenLogprobs& one : choice.logprobs) lists.add(one);
    return lists.take();
  }

  OrderedJson choice_json(size_t index) const {
    const Choice& choice = choices[index];
    OrderedJson one = {{"index", index}};
    const ServeRequest& asked = request.requests[index];
    const bool has_logprobs = asked.logprobs >= 0;
    if (is_chat()) {
      one["message"] = message(choice, index);
      one["logprobs"] =
          has_logprobs ? serve::chat_logprobs(tokenizer, choice.logprobs) : OrderedJson(nullptr);
    } else {
      const std::string prompt = !request.is_echoed     ? ""
                                 : asked.tokens.empty() ? asked.text
                                                        : tokenizer.decode(asked.tokens, false);
      one["text"] = prompt + choice.text;
      one["logprobs"] = has_logprobs ? text_logprobs(choice) : OrderedJson(nullptr);
      if (request.has_prompt_logprobs && choice.prompt) {
        one["prompt_logprobs"] = serve::prompt_logprobs_json(tokenizer, *choice.prompt);
      }
    }
    one["finish_reason"] =
        choice.last ? OrderedJson(serve::openai_finish_reason(*choice.last)) : OrderedJson(nullptr);
    if (request.has_token_ids) {
      one["token_ids"] = choice.tokens;
      if (!is_chat() && choice.prompt) one["prompt_token_ids"] = choice.prompt->prompt;
    }
    one.update(choice.fields);
    return one;
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
  if (event.kind == ServeEvent::Kind::kPrompt) choice.prompt = event;
  if (event.kind == ServeEvent::Kind::kFinish) choice.last = event;
}

void OpenAiResponse::attach(size_t request, std::string_view fields) {
  impl_->choices.at(request).fields.update(OrderedJson::parse(fields));
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
  serve::OpenAiUsage usage(impl.request.choices);
  for (size_t i = 0; i < impl.choices.size(); ++i) {
    body["choices"].push_back(impl.choice_json(i));
    if (impl.choices[i].last) usage.add(i, impl.choices[i].last->counts);
  }
  body["usage"] = usage.json();
  const std::optional<ServeEvent>& prompt = impl.choices[0].prompt;
  if (impl.is_chat() && prompt) {  // of all choices
    if (impl.request.has_prompt_logprobs) {
      body["prompt_logprobs"] = serve::prompt_logprobs_json(impl.tokenizer, *prompt);
    }
    if (impl.request.has_token_ids) body["prompt_token_ids"] = prompt->prompt;
  }
  if (impl.choices.size() == 1 && impl.choices[0].last) {
    body["timings"] = serve::openai_timings(impl.choices[0].last->counts);
  }
  return serve::dump_openai(body);
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
  return serve::dump_openai(
      {{"error", {{"message", message}, {"type", type}, {"param", param}, {"code", status}}}});
}

}  // namespace vitrine
