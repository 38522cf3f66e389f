// SPDX-License-Identifier: Apache-2.0
#include "bpe.h"

#include <algorithm>

#include "core/cancel_watch.h"
#include "unicode.h"

namespace vitrine::tokenizer {
namespace {

constexpr uint32_t kGone = ~uint32_t{0};

bool comes_later(const Bpe::Scratch::Candidate& a, const Bpe::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

}  // namespace

Bpe Bpe::load(const JsonNode& node) {
  Bpe bpe;
  if (const JsonNode type = node.get("type"); !type.is_null() && type.as_string() != "BPE") {
    type.unsupported("model " + quote(type.as_string()));
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const JsonNode affix = node.get(key);
    if (!affix.is_null() && !affix.as_string().empty()) affix.unsupported(quote(affix.as_string()));
  }
  const JsonNode dropout = node.get("dropout");
  if (!dropout.is_null()) {
    if (!dropout.value().is_number()) dropout.fail_type("null");
    if (dropout.value().get<double>() != 0.0) dropout.unsupported("a dropout other than 0");
  }
  bpe.byte_fallback_ = node.get("byte_fallback").as_bool_or(false);
  bpe.fuse_unk_ = node.get("fuse_unk").as_bool_or(false);
  bpe.ignore_merges_ = node.get("ignore_merges").as_bool_or(false);
  bpe.load_vocabulary(node.at("vocab"));
  bpe.load_byte_tokens();
  bpe.load_merges(node.at("merges"), node.get("merge_ranks"));
  if (const JsonNode unused = node.get("unused_ids"); !unused.is_null()) bpe.load_unused(unused);
  if (const JsonNode unk = node.get("unk_token"); !unk.is_null()) {
    bpe.unk_token_ = unk.as_string();
    bpe.unk_id_ = bpe.id_of(bpe.unk_token_);
    // tokenizers only complains when a text needs the token, and files that never do exist.
    try {
      if (bpe.unk_id_ < 0) unk.fail(quote(bpe.unk_token_), "an entry of model.vocab");
    } catch (const Error& error) {
      bpe.file_field_ = error.what();
    }
  }
  return bpe;
}

void Bpe::load_vocabulary(const JsonNode& node) {
  const Json& vocabulary = node.as_object();
  ids_.reserve(vocabulary.size());
  for (auto entry = vocabulary.begin(); entry != vocabulary.end(); ++entry) {
    const Json& value = entry.value();
    if (!value.is_number_unsigned() || value.get<uint64_t>() > uint64_t{kMaxTokenId}) {
      node.fail("an object whose id of " + quote(entry.key()) + " is " + quote(value.dump()),
                "ids from 0 to " + std::to_string(kMaxTokenId));
    }
    const int32_t id = value.get<int32_t>();
    const auto [place, is_new] = ids_.emplace(entry.key(), id);
    if (id >= end_id()) tokens_.resize(static_cast<size_t>(id) + 1, nullptr);
    if (tokens_[id] != nullptr) {
      node.fail("an object that gives id " + std::to_string(id) + " to both " +
                    quote(*tokens_[id]) + " and " + quote(entry.key()),
                "one entry for each id");
    }
    tokens_[id] = &place->first;
  }
  if (ids_.empty()) node.fail("empty", "a vocabulary");
  num_entries_ = static_cast<int32_t>(ids_.size());
  for (char32_t c = 0; c < char_ids_.size(); ++c) {
    std::string text;
    append_utf8(c, text);
    char_ids_[c] = id_of(text);
  }
}

void Bpe::load_byte_tokens() {
  constexpr char kHex[] = "0123456789ABCDEF";
  for (size_t byte = 0; byte < byte_ids_.size(); ++byte) {
    byte_ids_[byte] = id_of(std::string("<0x") + kHex[byte >> 4] + kHex[byte & 15] + ">");
  }
}

void Bpe::load_merges(const JsonNode& node, const JsonNode& ranks_node) {
  const Json& merges = node.as_array();
  const Json* ranks = ranks_node.is_null() ? nullptr : &ranks_node.as_array();
  if (ranks != nullptr && ranks->size() != merges.size()) {
    ranks_node.fail("a list of " + std::to_string(ranks->size()),
                    "one rank for each of the " + std::to_string(merges.size()) + " merges");
  }
  merges_ = PairMap<Merge>(merges.size());
  uint32_t rank = 0;
  for (size_t i = 0; i < merges.size(); ++i) {
    const Json& merge = merges[i];
    const auto fail = [&](const std::string& why, const std::string& expected) {
      node.fail("broken at merge " + std::to_string(i) + ": " + why, expected);
    };
    std::string_view left, right;
    if (merge.is_string()) {
      const std::string_view line = merge.get_ref<const std::string&>();
      if (line.starts_with("#version")) continue;
      const size_t space = line.find(' ');
      if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
        fail(quote(line), "two tokens with one space between them");
      }
      left = line.substr(0, space);
      right = line.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    } else {
      fail(quote(merge.dump(-1, ' ', false, Json::error_handler_t::replace)),
           "\"a b\" or [\"a\", \"b\"]");
    }
    const std::string whole = std::string(left) + std::string(right);
    for (const std::string_view token : {left, right, std::string_view(whole)}) {
      if (id_of(token) < 0) {
        fail("token " + quote(token) + " is not in model.vocab",
             "a merge whose parts and result are in model.vocab");
      }
    }
    if (ranks != nullptr) {
      const Json& given = (*ranks)[i];
      if (!given.is_number_unsigned() || given.get<uint64_t>() > uint64_t{UINT32_MAX}) {
        ranks_node.fail("a list with " + quote(given.dump()) + " at " + std::to_string(i),
                        "ranks from 0 to 4294967295");
      }
      rank = given.get<uint32_t>();
    }
    merges_(static_cast<uint32_t>(id_of(left)), static_cast<uint32_t>(id_of(right))) = {
        rank++, static_cast<uint32_t>(id_of(whole))};
  }
}

void Bpe::load_unused(const JsonNode& node) {
  std::vector<uint32_t> unused;
  for (const Json& value : node.as_array()) {
    const bool is_entry = value.is_number_unsigned() && value.get<uint64_t>() < tokens_.size() &&
                          tokens_[value.get<size_t>()] != nullptr;
    if (!is_entry) node.fail("a list with " + quote(value.dump()), "ids of model.vocab");
    unused.push_back(value.get<uint32_t>());
  }
  std::ranges::sort(unused);
  const auto repeated = std::ranges::unique(unused);
  unused.erase(repeated.begin(), repeated.end());
  // Merges within a piece come in the same order wherever it stands: so do the two parts of it.
  Scratch scratch;
  for (const uint32_t id : unused) {
    add_symbols(*tokens_[id], scratch);
    if (scratch.symbols.size() < 2) {
      node.fail("a list with " + std::to_string(id) + ", " + quote(*tokens_[id]),
                "ids of pieces of two characters or more");
    }
    merge_symbols(scratch, id);
    std::vector<uint32_t> parts;
    for (const Scratch::Symbol& symbol : scratch.symbols) {
      if (symbol.id != kGone) parts.push_back(symbol.id);
    }
    const auto text = [&](size_t part) { return token(static_cast<int32_t>(parts[part])); };
    if (parts.size() == 2 && !text(0).empty() && !text(1).empty() &&
        text(0) + text(1) == *tokens_[id]) {
      unused_parts_[id] = {parts[0], parts[1]};
    }
  }
  for (const uint32_t id : unused) {
    const std::string text = *tokens_[id];
    tokens_[id] = nullptr;
    ids_.erase(text);
  }
  while (!tokens_.empty() && tokens_.back() == nullptr) tokens_.pop_back();
}

int32_t Bpe::id_of(std::string_view token) const {
  const auto entry = ids_.find(token);
  return entry == ids_.end() ? -1 : entry->second;
}

const std::string& Bpe::token(int32_t id) const {
  static const std::string kNone;
  return id < 0 || id >= end_id() || tokens_[id] == nullptr ? kNone : *tokens_[id];
}

/// One symbol a character; unknown ones become their bytes' tokens, the unknown token, or nothing.
void Bpe::add_symbols(std::string_view word, Scratch& scratch) const {
  auto& symbols = scratch.symbols;
  symbols.clear();
  const auto add = [&](int32_t id) {
    const int32_t index = static_cast<int32_t>(symbols.size());
    symbols.push_back({static_cast<uint32_t>(id), index - 1, index + 1});
  };
  // An unknown token waits for the next character that is known: bytes of another overtake it, as
  // in tokenizers.
  bool has_unknown = false;
  for (size_t pos = 0; pos < word.size();) {
    const size_t begin = pos;
    const char32_t c = next_code_point(word, pos);
    const std::string_view character = word.substr(begin, pos - begin);
    const int32_t id = c < char_ids_.size() ? char_ids_[c] : id_of(character);
    if (id >= 0) {
      if (has_unknown) add(unk_id_);
      has_unknown = false;
      add(id);
    } else if (byte_fallback_ && std::ranges::all_of(character, [&](char byte) {
                 return byte_ids_[static_cast<uint8_t>(byte)] >= 0;
               })) {
      for (char byte : character) add(byte_ids_[static_cast<uint8_t>(byte)]);
    } else if (!unk_token_.empty()) {
      if (unk_id_ < 0) throw Error(ErrorKind::kBadFile, file_field_);
      if (has_unknown && !fuse_unk_) add(unk_id_);
      has_unknown = true;
    }
  }
  if (has_unknown) add(unk_id_);
  if (!symbols.empty()) symbols.back().next = -1;
}

void Bpe::encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const {
  if (word.empty()) return;
  core::throw_if_raised(scratch.cancelled, "tokenizing");
  if (ignore_merges_) {
    if (const int32_t id = id_of(word); id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  add_symbols(word, scratch);
  merge_symbols(scratch, kGone);
  for (const Scratch::Symbol& symbol : scratch.symbols) {
    if (symbol.id == kGone) continue;
    if (unused_parts_.empty()) {
      ids.push_back(static_cast<int32_t>(symbol.id));
    } else {
      append_parts(symbol.id, ids);
    }
  }
}

void Bpe::append_parts(uint32_t id, std::vector<int32_t>& ids) const {
  std::vector<uint32_t> left_over = {id};
  while (!left_over.empty()) {
    const uint32_t part = left_over.back();
    left_over.pop_back();
    if (const auto found = unused_parts_.find(part); found != unused_parts_.end()) {
      left_over.push_back(found->second.second);
      left_over.push_back(found->second.first);
    } else {
      ids.push_back(static_cast<int32_t>(part));
    }
  }
}

void Bpe::merge_symbols(Scratch& scratch, uint32_t spared) const {
  auto& symbols = scratch.symbols;
  auto& heap = scratch.heap;
  heap.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    if (const Merge* merge = merges_.find(symbols[i].id, symbols[i + 1].id)) {
      heap.push_back({merge->rank, static_cast<uint32_t>(i), merge->id});
    }
  }
  std::make_heap(heap.begin(), heap.end(), comes_later);
  const auto push = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    if (const Merge* merge = merges_.find(symbols[left].id, symbols[right].id)) {
      heap.push_back({merge->rank, static_cast<uint32_t>(left), merge->id});
      std::push_heap(heap.begin(), heap.end(), comes_later);
    }
  };
  while (!heap.empty()) {
    core::throw_if_raised(scratch.cancelled, "tokenizing");
    std::pop_heap(heap.begin(), heap.end(), comes_later);
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[top.position];
    if (left.id == kGone || left.next < 0) continue;
    Scratch::Symbol& right = symbols[left.next];
    // A candidate is stale once a neighbour was merged; as in tokenizers, the same result is
    // enough.
    const Merge* merge = merges_.find(left.id, right.id);
    if (merge == nullptr || merge->id != top.id || top.id == spared) continue;
    left.id = top.id;
    left.next = right.next;
    right.id = kGone;
    if (left.next >= 0) symbols[left.next].previous = static_cast<int32_t>(top.position);
    push(left.previous, static_cast<int32_t>(top.position));
    push(static_cast<int32_t>(top.position), left.next);
  }
}

}  // namespace vitrine::tokenizer
