// SPDX-License-Identifier: Apache-2.0
#include "serve/openai_parts.h"

#include <algorithm>

namespace vitrine::serve {

namespace {

constexpr double kLeastLogprob = -9999;  // stands for minus infinity, which JSON does not have

std::string token_text(const Tokenizer& tokenizer, int32_t token) {
  return token >= 0 && token < tokenizer.vocab_size() ? tokenizer.token_bytes(token) : "";
}

double finite(double logprob) { return std::max(logprob, kLeastLogprob); }

OrderedJson token_entry(const Tokenizer& tokenizer, int32_t token, double logprob) {
  const std::string bytes = token_text(tokenizer, token);
  OrderedJson values = OrderedJson::array();
  for (const char byte : bytes) values.push_back(static_cast<unsigned char>(byte));
  return {{"token", bytes}, {"logprob", finite(logprob)}, {"bytes", values}};
}

}  // namespace

std::string dump_openai(const OrderedJson& value) {
  return value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

const char* openai_finish_reason(const ServeEvent& last) {
  if (last.answer != nullptr && !last.answer->tool_calls.empty()) return "tool_calls";
  switch (last.reason) {
    case StopReason::kLength:
    case StopReason::kContextFull:
    case StopReason::kLengthConstrained: return "length";
    default: return "stop";
  }
}

std::string openai_call_id(const std::string& own, const std::string& response, size_t choice,
                           size_t call) {
  if (!own.empty()) return own;
  return "call_" + response + "_" + std::to_string(choice) + "_" + std::to_string(call);
}

OrderedJson chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenLogprobs> tokens) {
  OrderedJson content = OrderedJson::array();
  for (const TokenLogprobs& one : tokens) {
    OrderedJson entry = token_entry(tokenizer, one.token, one.logprob);
    entry["top_logprobs"] = OrderedJson::array();
    for (const auto& [token, logprob] : one.best) {
      entry["top_logprobs"].push_back(token_entry(tokenizer, token, logprob));
    }
    content.push_back(entry);
  }
  return {{"content", content}, {"refusal", nullptr}};
}

OrderedJson text_logprobs(const Tokenizer& tokenizer, std::span<const TokenLogprobs> tokens,
                          size_t offset) {
  OrderedJson texts = OrderedJson::array(), values = OrderedJson::array(),
              best = OrderedJson::array(), offsets = OrderedJson::array();
  for (const TokenLogprobs& one : tokens) {
    const std::string text = token_text(tokenizer, one.token);
    texts.push_back(text);
    values.push_back(finite(one.logprob));
    OrderedJson of = OrderedJson::object();
    for (const auto& [token, logprob] : one.best) {
      of[token_text(tokenizer, token)] = finite(logprob);
    }
    best.push_back(of);
    offsets.push_back(offset);
    offset += text.size();
  }
  return {{"tokens", texts},
          {"token_logprobs", values},
          {"top_logprobs", best},
          {"text_offset", offsets}};
}

void OpenAiUsage::add(size_t request, const ServeCounts& counts) {
  made_ += counts.new_tokens;
  if (request % choices_ != 0) return;
  prompt_ += counts.prompt_tokens;
  cached_ += counts.cached_tokens;
}

OrderedJson OpenAiUsage::json() const {
  return {{"prompt_tokens", prompt_},
          {"completion_tokens", made_},
          {"total_tokens", prompt_ + made_},
          {"prompt_tokens_details", {{"cached_tokens", cached_}}}};
}

OrderedJson openai_timings(const ServeCounts& counts) {
  constexpr double kMs = 1e3;
  const int64_t computed = counts.prompt_tokens - counts.cached_tokens;
  const double prompt =
      std::max(counts.first_token_seconds - counts.prepare_seconds - counts.queue_seconds, 0.0);
  const double made = std::max(counts.total_seconds - counts.first_token_seconds, 0.0);
  const auto rate = [](double tokens, double seconds) {
    return seconds > 0 ? tokens / seconds : 0.0;
  };
  // The prompt's last step makes the first token.
  const int64_t decoded = std::max<int64_t>(counts.new_tokens - 1, 0);
  return {{"cache_n", counts.cached_tokens},
          {"prompt_n", computed},
          {"prompt_ms", prompt * kMs},
          {"prompt_per_second", rate(static_cast<double>(computed), prompt)},
          {"predicted_n", counts.new_tokens},
          {"predicted_ms", made * kMs},
          {"predicted_per_second", rate(static_cast<double>(decoded), made)},
          {"queue_ms", counts.queue_seconds * kMs}};
}

}  // namespace vitrine::serve
