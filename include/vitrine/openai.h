// SPDX-License-Identifier: Apache-2.0
// The room `serve`: requests and answers as OpenAI's interface writes them, without a network.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/serve.h"

namespace vitrine {

/// Which of OpenAI's bodies a text is.
enum class OpenAiRoute : uint8_t { kChatCompletions, kCompletions };

/// A body as it was read: one request a prompt and choice.
struct OpenAiRequest {
  OpenAiRoute route = OpenAiRoute::kChatCompletions;  ///< what the body was read as
  std::string model;                                  ///< as the body names it; may be empty
  bool is_streamed = false;                           ///< "stream"
  bool has_usage = false;                             ///< "stream_options.include_usage"
  bool is_echoed = false;            ///< "echo": the prompt's text stands before the answer
  bool has_token_ids = false;        ///< "return_token_ids"
  bool has_prompt_logprobs = false;  ///< "prompt_logprobs" of vLLM, of ServeRequest's number
  /// "return_routed_experts" of SGLang: which experts each token went through is told.
  bool has_routed_experts = false;
  bool has_account =
      false;              ///< "account": each token's surprise, alternatives and experts are told
  bool has_seed = false;  ///< "seed": otherwise all answers draw the same numbers
  int choices = 1;        ///< "n", of each prompt
  /// [prompts * choices], the choices of a prompt side by side.
  std::vector<ServeRequest> requests;
};

/// Reads a body. Fields that Vitrine does not know are let pass, as vLLM does; those that it knows
/// and cannot do are refused. Of chat completions it reads `messages` (texts, or parts that are
/// text), `tools`, `tool_choice`, `parallel_tool_calls`, `response_format`, `structured_outputs`,
/// `chat_template_kwargs`; of completions `prompt` (a text, ids, or a list of either), `echo`; of
/// both the sampling fields of OpenAI, vLLM and llama-server, `stop`, `n`, `logprobs`,
/// `top_logprobs`, `logit_bias`, `grammar`, `json_schema`, `priority` and `cache_prompt`. Whose
/// request it is, the body does not say: ServeRequest::tenant is the host's to set. Throws
/// kInvalidArgument and kUnsupported, whose message begins with the field's name in quotes, and
/// kBadFile for a text that is no JSON object. Thread-safe.
///
/// `most_answers`: how many answers to all prompts together a body may ask for.
VITRINE_API OpenAiRequest read_openai_request(OpenAiRoute route, std::string_view body,
                                              int64_t most_answers = 2048);

/// Gathers what the requests of a body were answered, and writes the body of the response. Not
/// thread-safe.
class VITRINE_API OpenAiResponse {
 public:
  /// `model` and `id` are what the body says of itself; `created` in seconds since 1970.
  OpenAiResponse(const OpenAiRequest& request, const Tokenizer& tokenizer, std::string model,
                 std::string id, int64_t created);
  OpenAiResponse(OpenAiResponse&&) noexcept;
  ~OpenAiResponse();

  /// Takes the next event of the request of that index.
  void add(size_t request, const ServeEvent& event);
  /// Adds fields, a JSON object, to the choice that the request of that index makes.
  void attach(size_t request, std::string_view fields);
  /// The first error among the answers; null: there is none.
  const Error* error() const;
  /// Returns the response's body, one line of JSON; once every request has ended.
  std::string body() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Writes what the requests of a body are answered as it comes, in chunks. Not thread-safe.
class VITRINE_API OpenAiStream {
 public:
  /// Does what OpenAiResponse does with these.
  OpenAiStream(const OpenAiRequest& request, const Tokenizer& tokenizer, std::string model,
               std::string id, int64_t created);
  OpenAiStream(OpenAiStream&&) noexcept;
  ~OpenAiStream();

  /// Returns the chunks, a line of JSON each, that the next event of the request of that index
  /// makes; none or several. An event that tells an error is not for it.
  std::vector<std::string> add(size_t request, const ServeEvent& event);
  /// Adds fields, a JSON object, to the next chunk of the request of that index; lists that are
  /// there already get longer.
  void attach(size_t request, std::string_view fields);
  /// Returns what stands behind all answers: what they took, where the body asked for it.
  std::vector<std::string> finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The HTTP status that an error means: 400, 429, 501, 503 or 500.
VITRINE_API int openai_status(const Error& error);
/// {"error": {"message", "type", "param", "code"}} as OpenAI's clients read it.
VITRINE_API std::string openai_error_body(const Error& error);

}  // namespace vitrine
