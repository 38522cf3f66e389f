// SPDX-License-Identifier: Apache-2.0
#include "http/native_answer.h"

#include <algorithm>
#include <utility>

#include "http/answers.h"

namespace vitrine::http {

namespace {

constexpr double kMs = 1e3;
constexpr double kLeastLogprob = -9999;  // stands for minus infinity, which JSON does not have

double ratio(double of, double to) { return to > 0 ? of / to : 0.0; }

/// The part of "timings" about generated tokens.
void add_generation_times(Json& timings, int64_t tokens, double seconds) {
  // The prompt's last step makes the first token.
  const auto steps = static_cast<double>(std::max<int64_t>(tokens - 1, 0));
  timings["predicted_n"] = tokens;
  timings["predicted_ms"] = seconds * kMs;
  timings["predicted_per_token_ms"] = ratio(seconds * kMs, steps);
  timings["predicted_per_second"] = ratio(steps, seconds);
}

Json probability_json(const Tokenizer& tokenizer, int32_t token, double logprob) {
  const bool is_known = token >= 0 && token < tokenizer.vocab_size();
  const std::string text = is_known ? tokenizer.token_bytes(token) : "";
  Json bytes = Json::array();
  for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"id", token},
          {"token", text},
          {"bytes", bytes},
          {"logprob", std::max(logprob, kLeastLogprob)}};
}

Json probabilities_json(const Tokenizer& tokenizer, const TokenLogprobs& of) {
  Json entry = probability_json(tokenizer, of.token, of.logprob);
  entry["top_logprobs"] = Json::array();
  for (const auto& [token, logprob] : of.best) {
    entry["top_logprobs"].push_back(probability_json(tokenizer, token, logprob));
  }
  return entry;
}

const char* stop_type(const ServeEvent& last) {
  if (last.is_stop_string) return "word";
  switch (last.reason) {
    case StopReason::kEndOfText:
    case StopReason::kComplete: return "eos";
    case StopReason::kCancelled:
    case StopReason::kFailed: return "none";
    default: return "limit";
  }
}

/// Picks fields of an answer: one below another, named with a slash, comes to the top by that name.
Json pick_fields(const Json& all, const std::vector<std::string>& fields) {
  Json picked = Json::object();
  for (const std::string& field : fields) {
    const Json* at = &all;
    for (size_t begin = 0; at != nullptr && begin <= field.size();) {
      const size_t end = std::min(field.find('/', begin), field.size());
      const std::string key = field.substr(begin, end - begin);
      at = at->is_object() && at->contains(key) ? &(*at)[key] : nullptr;
      begin = end + 1;
    }
    if (at != nullptr) picked[field] = *at;
  }
  return picked;
}

class NativeWriter : public AnswerWriter {
 public:
  NativeWriter(const NativeRequest& request, const Tokenizer& tokenizer, std::string model)
      : asked_(request), tokenizer_(tokenizer), model_(std::move(model)) {
    answers_.resize(asked_.requests.size());
  }

  std::string add(size_t request, const ServeEvent& event) override {
    Answer& answer = answers_[request];
    switch (event.kind) {
      case ServeEvent::Kind::kRestart: answer = {}; return "";
      case ServeEvent::Kind::kToken: {
        if (answer.tokens.empty()) answer.first_seconds = event.seconds;
        answer.tokens.push_back(event.token);
        answer.content += event.text;
        if (!asked_.is_streamed) {
          if (event.logprobs) answer.logprobs.push_back(*event.logprobs);
          return "";
        }
        return sse_frame(dump(part_json(request, event)));
      }
      case ServeEvent::Kind::kFinish: {
        answer.content += event.text;
        answer.last = event;
        return asked_.is_streamed ? sse_frame(dump(whole_json(request))) : "";
      }
      default: return "";
    }
  }

  std::string finish() override {
    if (asked_.is_streamed) return "";
    Json all = Json::array();
    for (size_t i = 0; i < answers_.size(); ++i) all.push_back(whole_json(i));
    return dump(all.size() == 1 ? all.front() : all);
  }

  std::string fail(const Failure& failure) override { return sse_frame(openai_failure(failure)); }

 private:
  struct Answer {
    std::string content;
    std::vector<int32_t> tokens;
    std::vector<TokenLogprobs> logprobs;
    double first_seconds = 0;
    ServeEvent last;
  };

  Json part_json(size_t request, const ServeEvent& event) const {
    const Answer& answer = answers_[request];
    Json part = {{"index", request},
                 {"content", event.text},
                 {"tokens", {event.token}},
                 {"stop", false},
                 {"id_slot", asked_.slot},
                 {"tokens_predicted", answer.tokens.size()},
                 {"tokens_evaluated", asked_.requests[request].tokens.size()}};
    if (asked_.has_timings) {
      add_generation_times(part["timings"], std::ssize(answer.tokens),
                           event.seconds - answer.first_seconds);
    }
    if (event.logprobs) {
      part["completion_probabilities"].push_back(probabilities_json(tokenizer_, *event.logprobs));
    }
    return part;
  }

  /// The text of "stop" that ended an answer. What stands behind its content says which.
  std::string stopping_word(size_t request) const {
    const Answer& answer = answers_[request];
    if (!answer.last.is_stop_string) return "";
    const std::string whole = tokenizer_.decode(answer.tokens);
    const std::string_view rest =
        std::string_view(whole).substr(std::min(answer.content.size(), whole.size()));
    std::string found;
    for (const std::string& word : asked_.requests[request].stop) {
      if (rest.starts_with(word) && (found.empty() || word.size() < found.size())) found = word;
    }
    return found;
  }

  Json whole_json(size_t request) const {
    const Answer& answer = answers_[request];
    const ServeCounts& counts = answer.last.counts;
    const bool is_whole = !asked_.is_streamed;
    Json all = {{"index", request},
                {"content", is_whole ? answer.content : answer.last.text},
                {"tokens", is_whole && asked_.returns_tokens ? Json(answer.tokens) : Json::array()},
                {"id_slot", asked_.slot},
                {"stop", true},
                {"model", model_},
                {"tokens_predicted", counts.new_tokens},
                {"tokens_evaluated", counts.prompt_tokens},
                {"generation_settings", asked_.settings},
                {"prompt", tokenizer_.decode(asked_.requests[request].tokens, false)},
                {"has_new_line", answer.content.find('\n') != std::string::npos},
                {"truncated", answer.last.reason == StopReason::kContextFull},
                {"stop_type", stop_type(answer.last)},
                {"stopping_word", stopping_word(request)},
                {"tokens_cached", counts.cached_tokens},
                {"timings", native_timings(counts)}};
    if (!answer.logprobs.empty()) {
      Json& entries = all["completion_probabilities"] = Json::array();
      for (const TokenLogprobs& each : answer.logprobs) {
        entries.push_back(probabilities_json(tokenizer_, each));
      }
    }
    return asked_.response_fields.empty() ? all : pick_fields(all, asked_.response_fields);
  }

  const NativeRequest asked_;
  const Tokenizer& tokenizer_;
  const std::string model_;
  std::vector<Answer> answers_;
};

/// Refuses what the context cannot hold in llama-server's words, which its clients look for.
void check_lengths(const NativeRequest& read, int64_t context) {
  for (const ServeRequest& one : read.requests) {
    if (std::ssize(one.tokens) < context) continue;
    Failure failure{.status = 400,
                    .type = "exceed_context_size_error",
                    .message = "request (" + std::to_string(one.tokens.size()) +
                               " tokens) exceeds the available context size (" +
                               std::to_string(context) + " tokens); expected a shorter prompt",
                    .param = "prompt"};
    failure.extra = {{"n_prompt_tokens", one.tokens.size()}, {"n_ctx", context}};
    throw HttpError(failure);
  }
}

}  // namespace

std::unique_ptr<AnswerWriter> make_native_writer(const NativeRequest& request,
                                                 const Tokenizer& tokenizer, std::string model) {
  return std::make_unique<NativeWriter>(request, tokenizer, std::move(model));
}

Reply native_reply(const House& house, const Request& request, NativeRequest read) {
  const std::string model = house.find_model(read.model);
  check_lengths(read, house.server->model(model).options().max_context);
  auto exchange = std::make_unique<Exchange>();
  exchange->server = house.server;
  exchange->is_streamed = read.is_streamed;
  exchange->requests = read.requests;
  exchange->accounts = admit_requests(house, request, model, exchange->requests);
  // The server may give fewer tokens than the body asks for.
  const int most = exchange->requests.front().max_new_tokens;
  if (most < kEndlessAnswer) read.settings["n_predict"] = read.settings["max_tokens"] = most;
  exchange->writer = make_native_writer(read, house.server->model(model).tokenizer(),
                                        house.shown_model(read.model));
  Reply reply;
  reply.exchange = std::move(exchange);
  return reply;
}

Json native_timings(const ServeCounts& counts) {
  const auto computed = counts.prompt_tokens - counts.cached_tokens;
  const double seconds =
      std::max(counts.first_token_seconds - counts.prepare_seconds - counts.queue_seconds, 0.0);
  const auto tokens = static_cast<double>(computed);
  Json timings = {{"cache_n", counts.cached_tokens},
                  {"prompt_n", computed},
                  {"prompt_ms", seconds * kMs},
                  {"prompt_per_token_ms", ratio(seconds * kMs, tokens)},
                  {"prompt_per_second", ratio(tokens, seconds)}};
  add_generation_times(timings, counts.new_tokens,
                       std::max(counts.total_seconds - counts.first_token_seconds, 0.0));
  timings["queue_ms"] = counts.queue_seconds * kMs;
  return timings;
}

}  // namespace vitrine::http
