// SPDX-License-Identifier: Apache-2.0
// OpenAI's responses, of which nothing is stored.
#include <ctime>
#include <utility>

#include "http/answers.h"
#include "http/block_writer.h"
#include "http/responses_reader.h"
#include "http/responses_routes.json.h"
#include "http/route.h"

namespace vitrine::http {

namespace {

/// Writes a response, or the events that make one.
class ResponsesWriter : public BlockWriter {
 public:
  ResponsesWriter(const ResponsesRequest& request, std::string model)
      : BlockWriter(request.chat.is_streamed),
        shown_(request.shown),
        model_(std::move(model)),
        created_(std::time(nullptr)) {}

  std::string fail(const Failure& failure) override {
    const char* code = failure.status == 429   ? "rate_limit_exceeded"
                       : failure.status == 400 ? "invalid_prompt"
                                               : "server_error";
    if (!has_begun()) {
      return event("error",
                   {{"code", code},
                    {"message", failure.message},
                    {"param", failure.param.empty() ? Json(nullptr) : Json(failure.param)}});
    }
    Json response = response_json("failed");
    response["error"] = {{"code", code}, {"message", failure.message}};
    return event("response.failed", {{"response", response}});
  }

 protected:
  std::string begin() override {
    const Json response = response_json("in_progress");
    std::string frames = event("response.created", {{"response", response}});
    frames += event("response.in_progress", {{"response", response}});
    return frames;
  }
  std::string open(size_t index, const AnswerBlock& block) override {
    AnswerBlock empty = block;
    empty.text.clear();
    Json item = item_json(index, empty, "in_progress");
    if (block.part != ChatPart::kToolCall) item["content"] = Json::array();
    std::string frames =
        event("response.output_item.added", {{"output_index", index}, {"item", item}});
    if (block.part == ChatPart::kToolCall) return frames;
    return frames + part_event("response.content_part.added", index, empty);
  }
  std::string append(size_t index, const AnswerBlock& block, const std::string& text) override {
    Json fields = place(index, block);
    fields["delta"] = text;
    if (block.part == ChatPart::kContent) fields["logprobs"] = Json::array();
    return event(text_event(block) + ".delta", fields);
  }
  std::string close(size_t index, const AnswerBlock& block) override {
    Json fields = place(index, block);
    if (block.part == ChatPart::kToolCall) {
      fields["name"] = block.name;
      fields["arguments"] = block.text;
    } else {
      fields["text"] = block.text;
    }
    if (block.part == ChatPart::kContent) fields["logprobs"] = Json::array();
    std::string frames = event(text_event(block) + ".done", fields);
    if (block.part != ChatPart::kToolCall) {
      frames += part_event("response.content_part.done", index, block);
    }
    return frames +
           event("response.output_item.done",
                 {{"output_index", index}, {"item", item_json(index, block, done(index))}});
  }
  std::string end() override {
    return event(is_cut() ? "response.incomplete" : "response.completed",
                 {{"response", whole_json()}});
  }
  std::string body() override { return dump(whole_json()); }

 private:
  std::string event(const std::string& type, const Json& fields) {
    Json data = {{"type", type}, {"sequence_number", sequence_++}};
    data.update(fields);
    return sse_frame(dump(data), type);
  }

  static std::string text_event(const AnswerBlock& block) {
    switch (block.part) {
      case ChatPart::kReasoning: return "response.reasoning_text";
      case ChatPart::kContent: return "response.output_text";
      default: return "response.function_call_arguments";
    }
  }

  std::string item_id(size_t index, const AnswerBlock& block) const {
    const char* prefix = block.part == ChatPart::kReasoning ? "rs_"
                         : block.part == ChatPart::kContent ? "msg_"
                                                            : "fc_";
    return prefix + id_.substr(5) + "_" + std::to_string(index);
  }

  Json place(size_t index, const AnswerBlock& block) const {
    Json fields = {{"item_id", item_id(index, block)}, {"output_index", index}};
    if (block.part != ChatPart::kToolCall) fields["content_index"] = 0;
    return fields;
  }

  static Json part_json(const AnswerBlock& block) {
    if (block.part == ChatPart::kReasoning) {
      return {{"type", "reasoning_text"}, {"text", block.text}};
    }
    return {{"type", "output_text"},
            {"text", block.text},
            {"annotations", Json::array()},
            {"logprobs", Json::array()}};
  }

  std::string part_event(const char* type, size_t index, const AnswerBlock& block) {
    Json fields = place(index, block);
    fields["part"] = part_json(block);
    return event(type, fields);
  }

  // The last block is what a limit cut off.
  const char* done(size_t index) const {
    return is_cut() && index + 1 == blocks().size() ? "incomplete" : "completed";
  }

  Json item_json(size_t index, const AnswerBlock& block, const char* status) const {
    const std::string id = item_id(index, block);
    switch (block.part) {
      case ChatPart::kReasoning:
        return {{"id", id},
                {"type", "reasoning"},
                {"summary", Json::array()},
                {"content", Json::array({part_json(block)})},
                {"encrypted_content", nullptr},
                {"status", status}};
      case ChatPart::kContent:
        return {{"id", id},
                {"type", "message"},
                {"status", status},
                {"role", "assistant"},
                {"content", Json::array({part_json(block)})}};
      default: break;
    }
    const std::string own = "call_" + id_.substr(5) + "_" + std::to_string(index);
    return {{"id", id},           {"type", "function_call"},
            {"status", status},   {"call_id", block.call_id.empty() ? own : block.call_id},
            {"name", block.name}, {"arguments", block.text}};
  }

  Json response_json(const char* status) const {
    Json response = {{"id", id_},
                     {"object", "response"},
                     {"created_at", created_},
                     {"status", status},
                     {"background", false},
                     {"completed_at", nullptr},
                     {"error", nullptr},
                     {"incomplete_details", nullptr},
                     {"model", model_},
                     {"output", Json::array()},
                     {"usage", nullptr}};
    response.update(shown_);
    return response;
  }

  Json whole_json() const {
    Json response = response_json(is_cut() ? "incomplete" : "completed");
    if (is_cut()) {
      response["incomplete_details"] = {{"reason", "max_output_tokens"}};
    } else {
      response["completed_at"] = std::time(nullptr);
    }
    for (size_t i = 0; i < blocks().size(); ++i) {
      response["output"].push_back(item_json(i, blocks()[i], done(i)));
    }
    response["usage"] = {{"input_tokens", counts().prompt_tokens},
                         {"input_tokens_details",
                          {{"cached_tokens", counts().cached_tokens}, {"cache_write_tokens", 0}}},
                         {"output_tokens", counts().new_tokens},
                         {"output_tokens_details", {{"reasoning_tokens", reasoning_tokens()}}},
                         {"total_tokens", counts().prompt_tokens + counts().new_tokens}};
    return response;
  }

  const Json shown_;
  const std::string model_;
  const int64_t created_;
  const std::string id_ = "resp_" + random_id();
  int64_t sequence_ = 0;
};

Reply create(const House& house, const Request& request) {
  ResponsesRequest read = read_responses(request.body);
  auto writer = std::make_unique<ResponsesWriter>(read, house.shown_model(read.chat.model));
  return answer_chat(house, request, std::move(read.chat), std::move(writer));
}

Reply refuse_stored(const House& /*house*/, const Request& request) {
  throw HttpError(404, "there is no response '" + request.suffix +
                           "', since this server stores none; expected a POST to /v1/responses");
}

VITRINE_REGISTER_ROUTES(kResponsesRoutesJson,
                        {
                            {"POST", "/v1/responses", Access::kKey, create},
                            {"GET", "/v1/responses/*", Access::kKey, refuse_stored},
                            {"DELETE", "/v1/responses/*", Access::kKey, refuse_stored},
                        });

}  // namespace

}  // namespace vitrine::http
