// SPDX-License-Identifier: Apache-2.0
// What whole answers and streams of OpenAI's interface have in common.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "vitrine/openai.h"

namespace vitrine::serve {

using OrderedJson = nlohmann::ordered_json;

/// Writes JSON in one line; bytes that are no UTF-8 become U+FFFD.
std::string dump_openai(const OrderedJson& value);

/// OpenAI's word for why an answer ended.
const char* openai_finish_reason(const ServeEvent& last);

/// The id of a call of tools: the model's own, else one that is made of these.
std::string openai_call_id(const std::string& own, const std::string& response, size_t choice,
                           size_t call);

/// Log-probabilities as chat completions have them.
OrderedJson chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenLogprobs> tokens);
/// The four lists that completions have of tokens with their log-probabilities.
class TextLogprobs {
 public:
  explicit TextLogprobs(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  /// Adds a prompt's tokens, of which the first has no log-probability.
  void add_prompt(const ServeEvent& prompt);
  void add(const TokenLogprobs& token);
  /// Returns the lists so far, and begins new ones behind them.
  OrderedJson take();

 private:
  void add(int32_t token, OrderedJson logprob, OrderedJson best);

  const Tokenizer& tokenizer_;
  OrderedJson tokens_ = OrderedJson::array(), values_ = OrderedJson::array(),
              best_ = OrderedJson::array(), offsets_ = OrderedJson::array();
  size_t offset_ = 0;  // in the text, in bytes
};

/// vLLM's form of a prompt's log-probabilities: a list with null for the first token.
OrderedJson prompt_logprobs_json(const Tokenizer& tokenizer, const ServeEvent& prompt);

/// Adds up what the prompts and answers of a body took.
class OpenAiUsage {
 public:
  /// `choices`: answers to one prompt, of which the first one counts it.
  explicit OpenAiUsage(int choices) : choices_(static_cast<size_t>(choices)) {}
  void add(size_t request, const ServeCounts& counts);
  OrderedJson json() const;

 private:
  size_t choices_;
  int64_t prompt_ = 0, cached_ = 0, made_ = 0;
};

/// How long an answer took, by llama-server's names.
OrderedJson openai_timings(const ServeCounts& counts);

}  // namespace vitrine::serve
