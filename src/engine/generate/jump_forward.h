// SPDX-License-Identifier: Apache-2.0
// Which tokens a constraint forces next, as the tokenizer spells them: what jump-forward feeds in
// one chunk in place of one step a token.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/core.h"
#include "vitrine/tokenizer.h"

namespace vitrine::engine {

class JumpForward {
 public:
  /// `banned`: sequences that the sampler rules out (SamplerOptions::ban).
  JumpForward(const Tokenizer& tokenizer, std::span<const std::vector<int32_t>> banned)
      : tokenizer_(tokenizer), banned_(banned) {}

  /// Returns false where the mask allows tokens that begin with different bytes: nothing is forced
  /// then.
  bool may_jump(std::span<const uint32_t> mask) const;
  struct Spelling {
    std::span<const int32_t> tokens;
    /// How many of the tokens end where a word of the text ends, or before. The others may become
    /// one token with what follows.
    size_t num_words = 0;
  };
  /// Returns the tokens, `most` at most, that spell `forced` behind the text of `answer` as the
  /// tokenizer does; none where the tokenizer joins the text before with what is forced. They end
  /// before an id of `banned`, and before one that may end a banned sequence. Valid until the next
  /// call.
  Spelling spell(std::span<const int32_t> answer, std::string_view forced,
                 std::span<const int32_t> banned, size_t most);

 private:
  bool is_banned(int32_t id, std::span<const int32_t> banned) const;

  const Tokenizer& tokenizer_;
  std::span<const std::vector<int32_t>> banned_;
  std::vector<int32_t> tokens_;
};

}  // namespace vitrine::engine
