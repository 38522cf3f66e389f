// SPDX-License-Identifier: Apache-2.0
#include "added_tokens.h"

#include <algorithm>

#include "char_set.h"
#include "core/utf8.h"
#include "unicode.h"

namespace vitrine::tokenizer {
namespace {

const Regex& word_regex() {
  static const Regex kRegex =
      Regex::from_pcre2(std::string("[") + kWordItems + std::string(rust_word_additions()) + "]");
  return kRegex;
}

bool is_word_char(std::string_view character) {
  RegexScratch scratch;
  std::vector<RegexSpan> spans;
  word_regex().split(character, scratch, spans);
  return spans.size() == 1 && spans[0].is_match;
}

/// Where the character before `pos` begins.
size_t previous_start(std::string_view text, size_t pos) {
  --pos;
  while (pos > 0 && is_continuation(text[pos])) --pos;
  return pos;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0) {
    const size_t previous = previous_start(text, begin);
    if (is_word_char(text.substr(previous, begin - previous))) return false;
  }
  if (end < text.size()) {
    size_t next = end;
    next_code_point(text, next);
    if (is_word_char(text.substr(end, next - end))) return false;
  }
  return true;
}

}  // namespace

bool AddedTokens::Trie::add(std::string_view pattern, int32_t id) {
  uint32_t node = 0;
  for (char c : pattern) {
    uint32_t& child = children(node, static_cast<uint8_t>(c));
    if (child == 0) {
      child = static_cast<uint32_t>(ids.size());
      ids.push_back(-1);
    }
    node = child;
  }
  if (ids[node] >= 0) return false;
  ids[node] = id;
  return true;
}

bool AddedTokens::Trie::match(std::string_view text, size_t begin, size_t& end, int32_t& id) const {
  uint32_t node = 0;
  bool found = false;
  for (size_t pos = begin; pos < text.size();) {
    const uint32_t* child = children.find(node, static_cast<uint8_t>(text[pos]));
    if (child == nullptr) break;
    node = *child;
    ++pos;
    if (ids[node] >= 0) {
      found = true;
      end = pos;
      id = ids[node];
    }
  }
  return found;
}

AddedTokens AddedTokens::load(const JsonNode& node, const Bpe& bpe, const Normalizer& normalizer) {
  AddedTokens added;
  if (node.is_null()) return added;
  RegexScratch scratch;
  int32_t next_id = bpe.num_entries();
  for (const JsonNode& element : node.elements()) {
    AddedToken token;
    token.content = element.at("content").as_string();
    token.id = static_cast<int32_t>(element.at("id").as_integer(kMaxTokenId));
    token.single_word = element.get("single_word").as_bool_or(false);
    token.lstrip = element.get("lstrip").as_bool_or(false);
    token.rstrip = element.get("rstrip").as_bool_or(false);
    token.special = element.get("special").as_bool_or(false);
    token.normalized = element.get("normalized").as_bool_or(!token.special);
    if (token.content.empty()) continue;  // as tokenizers does

    if (added.tokens_.contains(token.id) || added.ids_.contains(token.content)) {
      element.fail(quote(token.content) + " with id " + std::to_string(token.id),
                   "each id and each content once in added_tokens");
    }
    // tokenizers ignores the written id for the one of the vocabulary or the next free one; where
    // the two differ the file contradicts itself.
    int32_t id = bpe.id_of(token.content);
    if (id < 0) id = next_id++;
    if (id != token.id) {
      element.get("id").fail(std::to_string(token.id) + " for " + quote(token.content),
                             std::to_string(id) + ", its place in the vocabulary");
    }
    token.decoded = token.content;
    if (token.normalized) token.decoded = normalizer.apply(token.content, scratch);
    if (token.decoded.empty()) {
      element.get("content").fail(quote(token.content) + ", which normalises to nothing",
                                  "text that the normalizer leaves something of");
    }
    Trie& trie = token.normalized ? added.normalized_ : added.raw_;
    if (!trie.add(token.decoded, token.id)) {
      element.get("content").fail(quote(token.content) + ", which normalises to another token",
                                  "distinct tokens");
    }
    added.ids_.emplace(token.content, token.id);
    added.tokens_.emplace(token.id, std::move(token));
  }
  return added;
}

std::string AddedTokens::guard(std::string_view text, std::string_view mark) const {
  std::string guarded;
  for (size_t pos = 0; pos < text.size();) {
    const auto is_special_at = [&](const Trie& trie) {
      size_t end = pos;
      int32_t id = -1;
      return trie.ids.size() > 1 && trie.match(text, pos, end, id) && find(id)->special;
    };
    const bool is_special = is_special_at(raw_) || is_special_at(normalized_);
    const size_t begin = pos;
    next_code_point(text, pos);
    guarded.append(text.substr(begin, pos - begin));
    if (is_special) guarded.append(mark);
  }
  return guarded;
}

void AddedTokens::split(std::string_view text, bool is_normalized,
                        std::vector<TextPart>& parts) const {
  const Trie& trie = is_normalized ? normalized_ : raw_;
  size_t done = 0;
  for (size_t pos = 0; pos < text.size() && trie.ids.size() > 1;) {
    size_t begin = pos, end = pos;
    int32_t id = -1;
    if (!trie.match(text, begin, end, id)) {
      ++pos;
      continue;
    }
    pos = end;
    const AddedToken& token = *find(id);
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) {
      while (begin > 0) {
        size_t previous = previous_start(text, begin);
        const size_t start = previous;
        if (!is_whitespace(next_code_point(text, previous))) break;
        begin = start;
      }
      begin = std::max(begin, done);
    }
    if (token.rstrip) {
      while (end < text.size()) {
        size_t next = end;
        if (!is_whitespace(next_code_point(text, next))) break;
        end = next;
      }
    }
    if (done < begin) parts.push_back({-1, text.substr(done, begin - done)});
    if (begin < end) parts.push_back({id, text.substr(begin, end - begin)});
    done = end;
  }
  if (done < text.size()) parts.push_back({-1, text.substr(done)});
}

const AddedToken* AddedTokens::find(int32_t id) const {
  const auto token = tokens_.find(id);
  return token == tokens_.end() ? nullptr : &token->second;
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto id = ids_.find(std::string(content));
  return id == ids_.end() ? nullptr : find(id->second);
}

bool AddedTokens::is_special_text(std::string_view text) const {
  const AddedToken* token = find(text);
  return token != nullptr && token->special;
}

}  // namespace vitrine::tokenizer
