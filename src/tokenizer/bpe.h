// SPDX-License-Identifier: Apache-2.0
// The model of a tokenizer.json: byte-pair encoding of one word.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "json_reader.h"
#include "pair_map.h"

namespace vitrine::tokenizer {

/// Ids above this are refused: tables are as long as the largest id.
constexpr int32_t kMaxTokenId = (1 << 22) - 1;

/// Vocabulary and merges. Immutable after loading.
class Bpe {
 public:
  /// Working memory of encode_word, to be kept between words; one per thread.
  struct Scratch {
    struct Symbol {
      uint32_t id;
      int32_t previous, next;  // -1: none; a symbol that was merged away has id kGone
    };
    struct Candidate {
      uint32_t rank, position, id;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    const std::atomic<bool>* cancelled = nullptr;  // a host's flag, which ends encode_word()
  };

  /// From the field `model`.
  static Bpe load(const JsonNode& node);

  /// Appends the ids of one word. O(n log n) in its length.
  void encode_word(std::string_view word, Scratch& scratch, std::vector<int32_t>& ids) const;

  /// The id of a vocabulary entry, -1 where there is none.
  int32_t id_of(std::string_view token) const;
  /// The entry of an id, empty where there is none.
  const std::string& token(int32_t id) const;
  /// Number of entries of the file, unused ones too, and one more than the largest id in use.
  int32_t num_entries() const { return num_entries_; }
  int32_t end_id() const { return static_cast<int32_t>(tokens_.size()); }

 private:
  struct Merge {
    uint32_t rank = 0, id = 0;
  };
  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };

  void load_vocabulary(const JsonNode& node);
  /// `ranks` (not in Hugging Face's own files): one for each merge, equal ones taken from the left;
  /// null: the merges' order.
  void load_merges(const JsonNode& node, const JsonNode& ranks);
  /// `ids` (not in Hugging Face's own files; null: none): entries that texts are joined to and
  /// never become. They are taken apart again at the end, as SentencePiece does with unused pieces.
  void load_unused(const JsonNode& ids);
  void load_byte_tokens();
  void add_symbols(std::string_view word, Scratch& scratch) const;
  /// Joins the symbols, to all but `spared`.
  void merge_symbols(Scratch& scratch, uint32_t spared) const;
  void append_parts(uint32_t id, std::vector<int32_t>& ids) const;

  std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>> ids_;
  int32_t num_entries_ = 0;
  std::vector<const std::string*> tokens_;  // by id, null: unused
  std::array<int32_t, 0x180> char_ids_{};   // of the one-character entries below U+0180
  PairMap<Merge> merges_;
  std::unordered_map<uint32_t, std::pair<uint32_t, uint32_t>> unused_parts_;
  std::string file_field_;  // for the one complaint that comes only with a text
  std::string unk_token_;
  int32_t unk_id_ = -1;
  bool fuse_unk_ = false;
  bool byte_fallback_ = false;
  std::array<int32_t, 256> byte_ids_{};  // of "<0x00>" to "<0xFF>", -1: none
  bool ignore_merges_ = false;
};

}  // namespace vitrine::tokenizer
