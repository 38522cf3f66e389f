// SPDX-License-Identifier: Apache-2.0
// Answers whose parts are told as numbered blocks, streamed or not.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "http/message.h"

namespace vitrine::http {

/// A text, what was thought, or a call.
struct AnswerBlock {
  ChatPart part = ChatPart::kContent;  ///< never kToolArguments
  std::string text = {};               ///< of a call, its arguments
  std::string name = {};               ///< of a call: the function
  std::string call_id = {};            ///< of a call: as the model wrote it; may be empty
};

/// Puts the parts of one request's answer into blocks. An answer without any has an empty text.
class BlockWriter : public AnswerWriter {
 public:
  explicit BlockWriter(bool is_streamed) : is_streamed_(is_streamed) {}
  std::string add(size_t request, const ServeEvent& event) final;
  std::string finish() final;

 protected:
  /// Each returns what a stream says then. What is known of the prompt stands in counts().
  virtual std::string begin() = 0;
  virtual std::string open(size_t index, const AnswerBlock& block) = 0;
  virtual std::string append(size_t index, const AnswerBlock& block, const std::string& text) = 0;
  virtual std::string close(size_t index, const AnswerBlock& block) = 0;
  virtual std::string end() = 0;
  /// The whole answer where it is not streamed.
  virtual std::string body() = 0;

  bool has_begun() const { return has_begun_; }
  const std::vector<AnswerBlock>& blocks() const { return blocks_; }
  const ServeCounts& counts() const { return counts_; }
  /// The last event, once it came.
  const std::optional<ServeEvent>& last() const { return last_; }
  /// Returns how many tokens stand before the first word to the user, where it was thinking.
  int64_t reasoning_tokens() const;
  /// Whether the limit of tokens or the context cut the answer off.
  bool is_cut() const;

 private:
  std::string take(const ChatDelta& delta);
  std::string open_block(AnswerBlock block);

  bool is_streamed_;
  bool has_begun_ = false;
  std::vector<AnswerBlock> blocks_;
  ServeCounts counts_;
  std::optional<ServeEvent> last_;
  std::optional<int64_t> reasoning_tokens_;  // once something else has come
};

}  // namespace vitrine::http
