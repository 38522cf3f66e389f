// SPDX-License-Identifier: Apache-2.0
#include "serve/openai_parts.h"

#include <algorithm>
#include <utility>

namespace vitrine::serve {

namespace {

constexpr double kLeastLogprob = -9999;  // stands for minus infinity, which JSON does not have

std::string token_text(const Tokenizer& tokenizer, int32_t token) {
  return token >= 0 && token < tokenizer.vocab_size() ? tokenizer.token_bytes(token) : "";
}

// The text of a token as a key: one that is no whole UTF-8 by its bytes, as OpenAI writes them.
std::string unique_text(const Tokenizer& tokenizer, int32_t token) {
  std::string text = token_text(tokenizer, token);
  try {
    [[maybe_unused]] const std::string checked = nlohmann::json(text).dump();
    return text;
  } catch (const nlohmann::json::type_error&) {  // no UTF-8
  }
  std::string written = "bytes:";
  constexpr const char* kDigits = "0123456789abcdef";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    written += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
  }
  return written;
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

void TextLogprobs::add_prompt(const ServeEvent& prompt) {
  if (!prompt.prompt.empty()) add(prompt.prompt.front(), nullptr, nullptr);
  for (const TokenLogprobs& one : prompt.prompt_logprobs) add(one);
}

void TextLogprobs::add(const TokenLogprobs& token) {
  OrderedJson best = OrderedJson::object();
  for (const auto& [id, logprob] : token.best) {
    best[unique_text(tokenizer_, id)] = finite(logprob);
  }
  add(token.token, finite(token.logprob), std::move(best));
}

void TextLogprobs::add(int32_t token, OrderedJson logprob, OrderedJson best) {
  tokens_.push_back(unique_text(tokenizer_, token));
  values_.push_back(std::move(logprob));
  best_.push_back(std::move(best));
  offsets_.push_back(offset_);
  offset_ += token_text(tokenizer_, token).size();
}

OrderedJson TextLogprobs::take() {
  OrderedJson lists = {{"tokens", std::exchange(tokens_, OrderedJson::array())},
                       {"token_logprobs", std::exchange(values_, OrderedJson::array())},
                       {"top_logprobs", std::exchange(best_, OrderedJson::array())},
                       {"text_offset", std::exchange(offsets_, OrderedJson::array())}};
  return lists;
}

OrderedJson prompt_logprobs_json(const Tokenizer& tokenizer, const ServeEvent& prompt) {
  OrderedJson list = OrderedJson::array();
  if (!prompt.prompt.empty()) list.push_back(nullptr);
  for (const TokenLogprobs& one : prompt.prompt_logprobs) {
    OrderedJson entry = OrderedJson::object();
    const auto add = [&](int32_t token, double logprob, int64_t rank) {
      entry[std::to_string(token)] = {{"logprob", finite(logprob)},
                                      {"rank", rank},
                                      {"decoded_token", token_text(tokenizer, token)}};
    };
    add(one.token, one.logprob, one.rank);
    for (size_t i = 0; i < one.best.size(); ++i) {
      if (one.best[i].first == one.token) continue;
      add(one.best[i].first, one.best[i].second, static_cast<int64_t>(i) + 1);
    }
    list.push_back(std::move(entry));
  }
  return list;
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
