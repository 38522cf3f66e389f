// SPDX-License-Identifier: Apache-2.0
#include "event_lines.h"

#include "answer_parts.h"
#include "common.h"

namespace cli {

namespace {

using Json = nlohmann::ordered_json;

std::string line_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string event_text(int32_t id, const vitrine::Tokenizer& tokenizer) {
  return id < tokenizer.vocab_size() ? tokenizer.token_text(id) : std::string();
}

}  // namespace

void EventLines::start(const AnswerStart& answer) {
  ++answer_;
  write_(line_of({{"event", "start"},
                  {"answer", answer_},
                  {"model", answer.model},
                  {"prompt_tokens", answer.prompt_tokens},
                  {"reused_tokens", answer.reused_tokens},
                  {"seed", seed_json(answer.seed)}}));
}

void EventLines::token(int32_t id, std::string_view text, const vitrine::TokenLogprobs* logprobs,
                       const vitrine::Tokenizer& tokenizer, std::string_view reasoning) {
  Json json = {{"event", "token"}, {"answer", answer_}, {"token", id}, {"text", text}};
  if (!reasoning.empty()) json["reasoning"] = reasoning;
  if (logprobs != nullptr) {
    json["logprob"] = logprobs->logprob;
    json["best"] = Json::array();
    for (const auto& [other, logprob] : logprobs->best) {
      json["best"].push_back(
          {{"token", other}, {"text", event_text(other, tokenizer)}, {"logprob", logprob}});
    }
  }
  write_(line_of(json));
}

void EventLines::rest(std::string_view text, std::string_view reasoning) {
  if (text.empty() && reasoning.empty()) return;
  Json json = {{"event", "token"}, {"answer", answer_}, {"text", text}};
  if (!reasoning.empty()) json["reasoning"] = reasoning;
  write_(line_of(json));
}

void EventLines::restart(int32_t attempt) {
  write_(line_of({{"event", "restart"}, {"answer", answer_}, {"attempt", attempt}}));
}

void EventLines::end(const AnswerEnd& answer) {
  Json json = {{"event", "end"},          {"answer", answer_},
               {"text", answer.text},     {"reason", answer.reason},
               {"tokens", answer.tokens}, {"is_complete", answer.is_complete}};
  if (!answer.failure.empty()) json["failure"] = answer.failure;
  add_parts(answer.parts, json);
  json["prefill_seconds"] = answer.prefill_seconds;
  json["decode_seconds"] = answer.decode_seconds;
  write_(line_of(json));
}

void EventLines::note(std::string_view text) {
  write_(line_of({{"event", "note"}, {"text", text}}));
}

void EventLines::refused(std::string_view text) {
  write_(line_of({{"event", "refused"}, {"text", text}}));
}

}  // namespace cli
