// SPDX-License-Identifier: Apache-2.0
// An answer asked of OpenAI's interface: the body that asks for it, and the stream that tells it.
#pragma once

#include <chrono>
#include <map>

#include "api_client.h"
#include "vitrine/evaluation.h"

namespace cli {

/// Tells what is known of a server.
struct ApiServer {
  std::string model;         ///< as it calls it
  std::string maker;         ///< "owned_by" of its models: "vitrine", "llamacpp", "vllm", …
  int64_t max_context = 0;   ///< positions; 0: it does not say
  bool has_logprobs = true;  ///< it tells those of an answer's tokens
  bool is_chat = true;       ///< it answers conversations

  /// It takes fields that OpenAI does not have, and tells ids.
  bool is_vitrine() const { return maker == "vitrine"; }
  bool tells_ids() const { return maker == "vitrine" || maker == "vllm"; }
};

/// The body of a request for an answer. Throws kUnsupported for what the interface has no words
/// for.
std::string answer_body(const ApiServer& server, const vitrine::ServeRequest& request,
                        bool is_streamed = true);

/// OpenAI's messages of a conversation.
ApiJson messages_json(const std::vector<vitrine::ChatMessage>& messages);

/// SHA-256 over ids as EvaluatedItem::prompt_sha256 has it.
std::string prompt_hash(std::span<const int32_t> ids);

/// Reads an answer, as events or as one body.
class AnswerReader final : public ReplyReader {
 public:
  /// `most_tokens`: that were asked for, which bounds what is read.
  AnswerReader(std::string url, int most_tokens);

  void begin() override;
  bool take(std::string_view bytes) override;
  bool end() override;
  /// Moves the answer out, with its times.
  vitrine::EvaluationTarget::Answer answer();

 private:
  using Clock = std::chrono::steady_clock;

  bool take_line(std::string_view line);
  bool take_event(const ApiJson& event);
  void take_choice(const ApiJson& choice);
  void take_delta(const ApiJson& delta);
  void take_call(const ApiJson& call, size_t place);
  void take_logprobs(const ApiJson& logprobs);
  void take_counts(const ApiJson& event);
  void see_piece();

  const std::string url_;
  const int most_tokens_;
  const size_t most_bytes_, most_events_;
  Clock::time_point begin_;
  std::string received_;
  size_t num_bytes_ = 0, num_events_ = 0;
  bool is_stream_ = false, has_first_ = false, is_done_ = false, has_reason_ = false;
  std::map<size_t, vitrine::ToolCall> calls_;
  vitrine::EvaluationTarget::Answer answer_;
};

}  // namespace cli
