// SPDX-License-Identifier: Apache-2.0
#include "engine/generate/jump_forward.h"

#include <algorithm>
#include <bit>

namespace vitrine::engine {

namespace {

constexpr size_t kTokensBefore = 16;  // of the answer, that are spelt again with what is forced
constexpr int kMaxAllowed = 64;       // ways to begin what is forced

bool is_in_word(char byte) {
  const auto value = static_cast<unsigned char>(byte);
  return value >= 0x80 || (value >= '0' && value <= '9') || (value >= 'a' && value <= 'z') ||
         (value >= 'A' && value <= 'Z');
}

}  // namespace

bool JumpForward::may_jump(std::span<const uint32_t> mask) const {
  int count = 0, first = -1;
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      const auto id = static_cast<int32_t>(word * 32) + std::countr_zero(bits);
      if (++count > kMaxAllowed || id >= tokenizer_.vocab_size()) return false;
      const std::string bytes = tokenizer_.token_bytes(id);
      if (bytes.empty()) return false;
      const int byte = static_cast<unsigned char>(bytes[0]);
      if (first >= 0 && byte != first) return false;
      first = byte;
    }
  }
  return first >= 0;
}

bool JumpForward::is_banned(int32_t id, std::span<const int32_t> banned) const {
  return std::ranges::find(banned, id) != banned.end() ||
         std::ranges::any_of(banned_, [id](const std::vector<int32_t>& sequence) {
           return !sequence.empty() && sequence.back() == id;
         });
}

JumpForward::Spelling JumpForward::spell(std::span<const int32_t> answer, std::string_view forced,
                                         std::span<const int32_t> banned, size_t most) {
  tokens_.clear();
  if (forced.empty()) return {};
  std::string text;
  for (const int32_t id : answer.last(std::min(answer.size(), kTokensBefore))) {
    if (id < tokenizer_.vocab_size()) text += tokenizer_.token_bytes(id);
  }
  const size_t before = text.size();
  text += forced;
  size_t words_end = before;
  for (size_t i = text.size() - 1; words_end == before && i > before; --i) {
    if (is_in_word(text[i - 1]) && !is_in_word(text[i])) words_end = i;
  }
  const std::vector<int32_t> ids = tokenizer_.encode(text, false);
  size_t length = 0;
  for (const int32_t id : ids) length += tokenizer_.token_bytes(id).size();
  // A tokenizer that writes a space before every text makes one byte more.
  if (length < text.size() || length > text.size() + 1) return {};
  const size_t lead = length - text.size();
  Spelling spelling;
  size_t at = 0;
  for (const int32_t id : ids) {
    const std::string bytes = tokenizer_.token_bytes(id);
    const size_t from = at;
    at += bytes.size();
    if (from < before + lead) {
      if (at > before + lead) return {};  // joined
      continue;
    }
    if (tokens_.size() == most || bytes.empty() || is_banned(id, banned) ||
        text.compare(from - lead, bytes.size(), bytes) != 0) {
      break;
    }
    tokens_.push_back(id);
    if (at - lead <= words_end) spelling.num_words = tokens_.size();
  }
  spelling.tokens = tokens_;
  return spelling;
}

}  // namespace vitrine::engine
