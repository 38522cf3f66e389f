// SPDX-License-Identifier: Apache-2.0
// Anthropic's messages.
#include <algorithm>
#include <utility>

#include "http/answers.h"
#include "http/block_writer.h"
#include "http/dialect.h"
#include "http/messages_reader.h"
#include "http/messages_routes.json.h"
#include "http/route.h"

namespace vitrine::http {

namespace {

// Anthropic's word for a status.
const char* error_type(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 408:
    case 504: return "timeout_error";
    case 413: return "request_too_large";
    case 429: return "rate_limit_error";
    case 503: return "overloaded_error";
    case 501: return "invalid_request_error";
    default: return status < 500 ? "invalid_request_error" : "api_error";
  }
}

std::string failure_body(const Failure& failure) {
  Json error = {{"type", error_type(failure.status)}, {"message", failure.message}};
  for (const auto& [name, value] : failure.extra.items()) error[name] = value;
  return dump({{"type", "error"}, {"error", error}, {"request_id", failure.request_id}});
}

/// Writes a message, or the events that make one.
class MessagesWriter : public BlockWriter {
 public:
  MessagesWriter(const MessagesRequest& request, std::string model)
      : BlockWriter(request.chat.is_streamed),
        shows_thinking_(request.shows_thinking),
        model_(std::move(model)) {}

  std::string fail(const Failure& failure) override {
    return sse_frame(failure_body(failure), "error");
  }
  std::string idle() override { return event("ping", Json::object()); }

 protected:
  std::string begin() override {
    Json message = message_json();
    message["usage"] = usage_json();
    return event("message_start", {{"message", message}}) + idle();
  }
  std::string open(size_t index, const AnswerBlock& block) override {
    AnswerBlock empty = block;
    empty.text.clear();
    return event("content_block_start",
                 {{"index", index}, {"content_block", block_json(index, empty, "")}});
  }
  std::string append(size_t index, const AnswerBlock& block, const std::string& text) override {
    if (block.part == ChatPart::kReasoning && !shows_thinking_) return "";
    switch (block.part) {
      case ChatPart::kReasoning:
        return delta(index, {{"type", "thinking_delta"}, {"thinking", text}});
      case ChatPart::kContent: return delta(index, {{"type", "text_delta"}, {"text", text}});
      default: return delta(index, {{"type", "input_json_delta"}, {"partial_json", text}});
    }
  }
  std::string close(size_t index, const AnswerBlock& block) override {
    std::string frames;
    if (block.part == ChatPart::kReasoning) {
      frames = delta(index, {{"type", "signature_delta"}, {"signature", id_}});
    }
    return frames + event("content_block_stop", {{"index", index}});
  }
  std::string end() override {
    return event("message_delta",
                 {{"delta", {{"stop_reason", stop_reason()}, {"stop_sequence", stop_sequence()}}},
                  {"usage", usage_json()}}) +
           event("message_stop", Json::object());
  }
  std::string body() override {
    Json message = message_json();
    for (size_t i = 0; i < blocks().size(); ++i) {
      message["content"].push_back(block_json(i, blocks()[i], id_));
    }
    message["stop_reason"] = stop_reason();
    message["stop_sequence"] = stop_sequence();
    message["usage"] = usage_json();
    return dump(message);
  }

 private:
  static std::string event(const char* type, const Json& fields) {
    Json data = {{"type", type}};
    data.update(fields);
    return sse_frame(dump(data), type);
  }
  static std::string delta(size_t index, const Json& fields) {
    return event("content_block_delta", {{"index", index}, {"delta", fields}});
  }

  Json message_json() const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_},
            {"content", Json::array()},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr}};
  }

  Json block_json(size_t index, const AnswerBlock& block, const std::string& signature) const {
    switch (block.part) {
      case ChatPart::kReasoning:
        return {{"type", "thinking"},
                {"thinking", shows_thinking_ ? block.text : ""},
                {"signature", signature}};
      case ChatPart::kContent: return {{"type", "text"}, {"text", block.text}};
      default: break;
    }
    const std::string own = "toolu_" + id_.substr(4) + "_" + std::to_string(index);
    return {{"type", "tool_use"},
            {"id", block.call_id.empty() ? own : block.call_id},
            {"name", block.name},
            {"input", input_json(block.text)}};
  }

  // What a model wrote of a call is an object as a rule.
  static Json input_json(const std::string& arguments) {
    if (arguments.empty()) return Json::object();
    const std::optional<Json> parsed = parse_json(arguments);
    if (parsed && parsed->is_object()) return *parsed;
    return {{"arguments", parsed ? *parsed : Json(arguments)}};
  }

  // Anthropic counts apart what was found in the cache.
  Json usage_json() const {
    return {{"input_tokens", counts().prompt_tokens - counts().cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", counts().cached_tokens},
            {"output_tokens", counts().new_tokens},
            {"output_tokens_details", {{"thinking_tokens", reasoning_tokens()}}}};
  }

  const char* stop_reason() const {
    if (last()->is_stop_string) return "stop_sequence";
    if (last()->reason == StopReason::kContextFull) return "model_context_window_exceeded";
    if (is_cut()) return "max_tokens";
    const bool calls = std::ranges::any_of(
        blocks(), [](const AnswerBlock& block) { return block.part == ChatPart::kToolCall; });
    return calls ? "tool_use" : "end_turn";
  }
  Json stop_sequence() const { return last()->is_stop_string ? Json(last()->stop) : Json(nullptr); }

  const bool shows_thinking_;
  const std::string model_;
  const std::string id_ = "msg_" + random_id();
};

Reply create(const House& house, const Request& request) {
  MessagesRequest read = read_messages(request.body, /*counts=*/false);
  auto writer = std::make_unique<MessagesWriter>(read, house.shown_model(read.chat.model));
  return answer_chat(house, request, std::move(read.chat), std::move(writer));
}

Reply count_tokens(const House& house, const Request& request) {
  MessagesRequest read = read_messages(request.body, /*counts=*/true);
  ServeRequest& one = read.chat.requests.front();
  one.model = house.find_model(read.chat.model);
  one.tenant = request.client.tenant;
  return json_reply({{"input_tokens", house.server->encode(one).size()}});
}

VITRINE_REGISTER_ROUTES(kMessagesRoutesJson,
                        {
                            {"POST", "/v1/messages", Access::kKey, create, failure_body},
                            {"POST", "/v1/messages/count_tokens", Access::kKey, count_tokens,
                             failure_body},
                        });

}  // namespace

}  // namespace vitrine::http
