// SPDX-License-Identifier: Apache-2.0
// What `generate --json-lines` and `chat --json-lines` print: one JSON object an event, a line
// each.
//
//   {"event":"start","answer":0,"model":"…","prompt_tokens":5,"reused_tokens":0,"seed":7}
//   {"event":"token","answer":0,"token":262,"text":" the","logprob":-0.25,"best":[…]}
//   {"event":"token","answer":0,"token":262,"text":"","reasoning":" hm"}
//   {"event":"restart","answer":0,"attempt":1}
//   {"event":"end","answer":0,"text":"…","reason":"end of text","tokens":12,"is_complete":true, …}
//   {"event":"note","text":"the conversation is forgotten"}
//   {"event":"refused","text":"…"}
//
// The text of an answer whose format has parts is its content; the others are "reasoning" and, at
// its end, "tool_calls". The texts of an answer's token events, since its last restart, are the
// text of its end event. A token whose text is not yet certain (part of a character, of a stop
// string) has an empty one; what becomes certain only at the end comes in a token event without
// "token".
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "vitrine/chat_output.h"
#include "vitrine/engine.h"
#include "vitrine/tokenizer.h"

namespace cli {

struct AnswerStart {
  std::string model;
  int64_t prompt_tokens = 0;
  int64_t reused_tokens = 0;  ///< of these, those that were in the sequence already
  uint64_t seed = 0;
};

struct AnswerEnd {
  std::string text, reason;
  int64_t tokens = 0;
  bool is_complete = true;  ///< false: not what its constraint asks for; `failure` says why
  std::string failure;
  double prefill_seconds = 0, decode_seconds = 0;
  vitrine::ChatAnswer parts;  ///< of which reasoning and calls are told
};

/// Numbers the answers from 0 and writes their events. Bytes that are not UTF-8 become U+FFFD.
class EventLines {
 public:
  /// `write` gets whole lines, their newline included; what it throws passes through.
  explicit EventLines(std::function<void(std::string_view)> write) : write_(std::move(write)) {}

  void start(const AnswerStart& answer);
  /// `logprobs`: null where they were not asked for.
  void token(int32_t id, std::string_view text, const vitrine::TokenLogprobs* logprobs,
             const vitrine::Tokenizer& tokenizer, std::string_view reasoning = {});
  /// Text that became certain behind the last token; nothing is written where it is empty.
  void rest(std::string_view text, std::string_view reasoning = {});
  /// The answer begins anew: what was written of it does not stand.
  void restart(int32_t attempt);
  void end(const AnswerEnd& answer);
  /// What a command of the user's brought about ("the conversation is forgotten").
  void note(std::string_view text);
  /// A message that cannot be answered, and why; the conversation is as it was.
  void refused(std::string_view text);

 private:
  std::function<void(std::string_view)> write_;
  int64_t answer_ = -1;
};

}  // namespace cli
