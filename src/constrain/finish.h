// SPDX-License-Identifier: Apache-2.0
// How an answer can be finished: concrete texts, counted in tokens. Every count is that of a text
// which really completes the place that it is asked for, so it is an upper bound that holds.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "json_machine.h"
#include "key_tokens.h"
#include "least_size.h"
#include "token_table.h"

namespace vitrine::constrain {

inline constexpr uint32_t kNoBound = Constraint::kNoTokenBound;
/// Bytes of a completion that is written out: of a longer one nothing is known but its least size.
inline constexpr size_t kMaxFinishText = size_t{1} << 16;
static_assert(kNoBound == kUnbounded, "add_bounds() keeps both");

/// A text and the fewest tokens that spell it; kNoBound where there is none.
struct Finish {
  std::string text;
  uint32_t tokens = kNoBound;
  bool is_known() const { return tokens != kNoBound; }
};

/// Completions of automaton states and of values. Constraints of one grammar share it.
class FinishTexts {
 public:
  /// `grammar`: null for a regular language.
  FinishTexts(RegexPool& pool, JsonGrammar* grammar, const TokenTable::Impl& table)
      : pool_(pool), grammar_(grammar), table_(table), key_tokens_(pool, table) {
    for (size_t byte = 0; byte < 256; ++byte) is_token_[byte] = table.is_token(byte);
  }

  /// A short text that ends the state's language.
  const Finish& of_state(NodeId state);
  /// A short JSON text for the value; `checked` is the memory of whether a machine has read it.
  struct Checked : Finish {
    bool is_checked = false;
  };
  Checked& of_value(ValueId id);
  /// So many short texts of the state's language that are none of `used`; not every number is
  /// tried. Fewer where no more were found within the work that is allowed.
  std::vector<std::string> unused_texts(NodeId state, const std::vector<std::string>& used,
                                        size_t count);
  /// What unused_texts() looks through for that many.
  const std::vector<std::string>& first_texts(NodeId state, size_t count) {
    return candidates(state, count).texts;
  }
  /// The fewest tokens that end a string behind a token of this kind (Plain::Inside), where
  /// `least` characters more must come, and any may.
  uint32_t end_of_string(uint32_t kind, uint32_t least);
  /// The tokens that stay within a string of any text and leave at most so many to its end.
  const std::vector<uint32_t>& within_string(uint32_t most);
  /// Between questions: bounds the memory.
  void trim();
  Finish spelled(std::string text) const;
  const TokenTable::Impl& table() const { return table_; }
  KeyTokens& key_tokens() { return key_tokens_; }

 private:
  std::optional<std::string> state_text(NodeId state);
  bool is_too_long(NodeId state);
  /// The first of the language's texts by length, of these bytes alone.
  std::optional<std::string> search(NodeId state, const std::array<bool, 256>& bytes);
  bool descend(NodeId state, std::string& out);
  std::optional<std::string> value_text(ValueId id, int depth);

  RegexPool& pool_;
  JsonGrammar* grammar_;
  const TokenTable::Impl& table_;
  KeyTokens key_tokens_;
  std::array<bool, 256> is_token_;
  std::unordered_map<NodeId, Finish> states_;
  std::unordered_map<ValueId, Checked> values_;
  std::unordered_map<ValueId, std::string> value_texts_;
  std::vector<ValueId> open_values_;
  size_t visits_ = 0;
  struct Candidates {
    std::vector<std::string> texts;  // the language's first ones
    bool all = false;                // no more are found within the work that is allowed
  };
  const Candidates& candidates(NodeId state, size_t count);
  std::unordered_map<uint64_t, uint32_t> string_ends_;  // by kind and characters
  struct Within {
    uint32_t most = 0;
    std::vector<uint32_t> words;
  };
  std::vector<Within> within_string_;  // ascending; the first has none
  std::unordered_map<NodeId, Candidates> candidates_;
};

/// Completions of places in JSON text.
class JsonFinish {
 public:
  JsonFinish(JsonMachine& machine, FinishTexts& texts) : machine_(machine), texts_(texts) {}

  /// The best of them.
  Finish of(const Configs& configs);
  /// Its number of tokens, part by part: at least that of the whole text.
  uint32_t bound(const Configs& configs);
  /// The value's text, once the machine has read it.
  const Finish& text_of_value(ValueId id);
  /// Keys that are not named which the object has, and those that completions of it may have.
  template <typename Visit>
  void for_known_keys(const Frame& frame, Visit&& visit) {
    size_t count = 0;
    for (const SeenLink* link = frame.others; link != nullptr; link = link->before, ++count) {
      visit(link->text());
    }
    const ObjectShape& shape = machine_.grammar().object(frame.shape);
    if (frame.count + 1 >= shape.min) return;
    for (const std::string& text : texts_.first_texts(shape.rest_keys, shape.min + count + 1)) {
      visit(text);
    }
  }

 private:
  enum class Place : uint8_t { kAfterValue, kFirst, kNext };

  uint32_t visit(const Config& config, std::string* text);
  /// Reads `text` from here, then finishes.
  uint32_t through(const Config& config, const std::string& text, std::string* out);
  std::vector<uint64_t> kind_of_key(const Config& config);
  uint32_t visit_key(const Config& config, std::string* text);
  uint32_t look_at_key(const Config& config, std::string* text);
  /// From behind a value within `frame` to the end.
  uint32_t rest(const Frame* frame, Place place, std::string* text);
  std::optional<std::string> own_rest(const Frame& frame, Place place);
  std::optional<std::string> object_rest(const Frame& frame, Place place);
  std::optional<std::string> array_rest(const Frame& frame);
  /// A container of so many members or items is like none that it must differ from.
  uint32_t least_size(const Frame& frame) const;
  /// A further item of an array of unique items, one that is a container.
  Finish other_container(const Frame& array, ValueId item);
  bool leads_out(const Frame& frame, Place place, const std::string& text);

  JsonMachine& machine_;
  FinishTexts& texts_;
  struct Rest : Finish {
    uint32_t size = 0;  // members or items in all
  };
  const Rest& rest_of(const Frame& frame, Place place);
  Rest passing_rest_;                               // one that is not kept
  std::unordered_map<uint64_t, Rest> frames_;       // by serial and place
  std::map<std::vector<uint64_t>, uint32_t> keys_;  // bounds, by kind_of_key()
  uint32_t made_size_ = 0;                          // of the container made last
  // More than the size of the item before the next one, which has not ended yet; 0: it has.
  uint32_t pending_size_ = 0;
  uint32_t num_others_ = 0;  // containers that a text has so far
};

/// The JSON spelling of characters, with the escapes that must be.
std::string escaped(std::string_view characters);

}  // namespace vitrine::constrain
