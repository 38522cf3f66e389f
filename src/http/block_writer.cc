// SPDX-License-Identifier: Apache-2.0
#include "http/block_writer.h"

#include <algorithm>
#include <utility>

namespace vitrine::http {

std::string BlockWriter::add(size_t /*request*/, const ServeEvent& event) {
  if (event.kind == ServeEvent::Kind::kRestart && !is_streamed_) {
    blocks_.clear();
    reasoning_tokens_.reset();
  }
  const bool is_of_answer =
      event.kind == ServeEvent::Kind::kToken || event.kind == ServeEvent::Kind::kFinish;
  if (!is_of_answer) return "";
  counts_ = event.counts;
  std::string frames;
  if (is_streamed_ && !std::exchange(has_begun_, true)) frames += begin();
  for (const ChatDelta& delta : event.deltas) frames += take(delta);
  if (event.kind == ServeEvent::Kind::kFinish) last_ = event;
  return frames;
}

std::string BlockWriter::finish() {
  std::string frames;
  if (blocks_.empty()) frames += open_block({});
  if (!is_streamed_) return body();
  frames += close(blocks_.size() - 1, blocks_.back());
  frames += end();
  return frames;
}

std::string BlockWriter::take(const ChatDelta& delta) {
  std::string frames;
  const bool begins_call = delta.part == ChatPart::kToolCall;
  const ChatPart part = delta.part == ChatPart::kToolArguments ? ChatPart::kToolCall : delta.part;
  const bool is_other = blocks_.empty() || blocks_.back().part != part;
  if (begins_call) {
    frames += open_block({.part = part, .name = delta.text, .call_id = delta.id});
  } else if (is_other && !delta.text.empty()) {
    frames += open_block({.part = part});
  }
  if (begins_call || delta.text.empty()) return frames;
  blocks_.back().text += delta.text;
  if (is_streamed_) frames += append(blocks_.size() - 1, blocks_.back(), delta.text);
  return frames;
}

std::string BlockWriter::open_block(AnswerBlock block) {
  if (block.part != ChatPart::kReasoning && !reasoning_tokens_) {
    // The token at hand is not of the reasoning any more.
    reasoning_tokens_ = blocks_.empty() ? 0 : std::max<int64_t>(counts_.new_tokens - 1, 0);
  }
  std::string frames;
  if (is_streamed_ && !blocks_.empty()) frames += close(blocks_.size() - 1, blocks_.back());
  blocks_.push_back(std::move(block));
  if (is_streamed_) frames += open(blocks_.size() - 1, blocks_.back());
  return frames;
}

int64_t BlockWriter::reasoning_tokens() const {
  return reasoning_tokens_.value_or(blocks_.empty() ? 0 : counts_.new_tokens);
}

bool BlockWriter::is_cut() const {
  return last_ &&
         (last_->reason == StopReason::kLength || last_->reason == StopReason::kContextFull ||
          last_->reason == StopReason::kLengthConstrained);
}

}  // namespace vitrine::http
