// SPDX-License-Identifier: Apache-2.0
#include "engine/draft/draft_spelling.h"

#include <algorithm>

namespace vitrine::engine {

namespace {

// So many of the target's tokens are spelt again together with what was guessed behind them, so
// that the first guess is spelt as in the middle of a text.
constexpr size_t kContextTokens = 4;

// Leaves out the bytes of a character that is not whole yet.
std::string_view whole_characters(std::string_view text) {
  size_t last = text.size();
  while (last > 0 && text.size() - last < 4 &&
         (static_cast<unsigned char>(text[last - 1]) & 0xc0) == 0x80) {
    --last;
  }
  if (last == 0) return text;
  const auto lead = static_cast<unsigned char>(text[last - 1]);
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
  return text.size() - (last - 1) < length ? text.substr(0, last - 1) : text;
}

// The ids of `text` behind `before`, where they do not hang together.
std::vector<int32_t> encode_behind(const Tokenizer& tokenizer, const std::string& before,
                                   std::string_view text) {
  const std::vector<int32_t> first = tokenizer.encode(before, false);
  std::vector<int32_t> all = tokenizer.encode(before + std::string(text), false);
  const bool is_apart =
      all.size() >= first.size() && std::equal(first.begin(), first.end(), all.begin());
  if (!is_apart) return tokenizer.encode(text, false);
  all.erase(all.begin(), all.begin() + std::ssize(first));
  return all;
}

}  // namespace

void DraftSpelling::truncate(int64_t length) {
  target_.resize(static_cast<size_t>(length));
  if (target_.size() >= spelt_) return;
  spelt_ = 0;
  own_.resize(beginning_);
  closed_ = beginning_;
}

std::span<const int32_t> DraftSpelling::tokens(const DraftSpellings& spellings) {
  if (spellings.facts_.is_same) return same_tokens(spellings.facts_.vocab_size);
  size_t word = target_.size();  // where the last one begins
  while (word > spelt_ && !spellings.begins_word(target_[word - 1])) --word;
  if (word > spelt_) --word;
  unchanged_ = static_cast<int64_t>(closed_);
  own_.resize(closed_);
  const auto add = [&](size_t first, size_t end) {
    const std::vector<int32_t> spelt =
        spellings.spell(std::span<const int32_t>(target_).subspan(first, end - first));
    own_.insert(own_.end(), spelt.begin(), spelt.end());
  };
  add(spelt_, word);
  spelt_ = word;
  closed_ = own_.size();
  add(word, target_.size());
  return own_;
}

// The text is its own spelling, as long as the draft model has its tokens.
std::span<const int32_t> DraftSpelling::same_tokens(int32_t vocab_size) {
  unchanged_ = std::ssize(target_);
  while (spelt_ < target_.size() && target_[spelt_] < vocab_size) ++spelt_;
  return std::span<const int32_t>(target_).first(spelt_ == target_.size() ? spelt_ : 0);
}

DraftSpellings::DraftSpellings(const Tokenizer& draft, const Tokenizer& target, Facts facts)
    : draft_(draft), target_(target), facts_(facts) {
  if (!facts_.is_same) beginning_ = draft.encode("", true);
}

bool DraftSpellings::begins_word(int32_t target_token) const {
  if (target_.is_special(target_token)) return true;
  const std::string bytes = target_.token_bytes(target_token);
  return bytes.starts_with(' ') || bytes.starts_with('\n');
}

std::vector<int32_t> DraftSpellings::spell(std::span<const int32_t> target_tokens) const {
  std::vector<int32_t> all;
  std::string text;
  const auto flush = [&] {
    if (text.empty()) return;
    const std::vector<int32_t> ids = encode_behind(draft_, "\n", whole_characters(text));
    all.insert(all.end(), ids.begin(), ids.end());
    text.clear();
  };
  for (const int32_t token : target_tokens) {
    if (!target_.is_special(token)) {
      text += target_.token_bytes(token);
      continue;
    }
    flush();
    const int32_t same = draft_.token_id(target_.token_text(token));
    if (same >= 0) all.push_back(same);
  }
  flush();
  return all;
}

int32_t DraftSpellings::guesses(const DraftSpelling& text, std::span<const int32_t> guessed,
                                std::span<int32_t> out) const {
  std::vector<int32_t> ids;
  if (facts_.is_same) {
    ids.assign(guessed.begin(), guessed.end());
  } else {
    std::string bytes;
    for (const int32_t token : guessed) {
      if (!is_end(token)) bytes += draft_.token_bytes(token);
    }
    std::string before;
    const std::span<const int32_t> all = text.target_tokens();
    for (const int32_t token : all.last(std::min(all.size(), kContextTokens))) {
      before = target_.is_special(token) ? "" : before + target_.token_bytes(token);
    }
    ids = encode_behind(target_, before, whole_characters(bytes));
  }
  int32_t count = 0;
  for (const int32_t id : ids) {
    if (count == std::ssize(out) || id >= target_.vocab_size()) break;
    out[static_cast<size_t>(count++)] = id;
  }
  return count;
}

bool DraftSpellings::is_end(int32_t token) const {
  return !facts_.is_same && (token >= draft_.vocab_size() || draft_.is_special(token));
}

}  // namespace vitrine::engine
