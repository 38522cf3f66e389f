// SPDX-License-Identifier: Apache-2.0
// Context-free grammars: rules over regular terminals, and an Earley parser (Earley 1970, with
// nullable rules as in Aycock and Horspool 2002) that reads bytes. What has no reference to a rule
// that leads back to itself becomes a terminal: an automaton of derivatives. JSON text under a
// schema is a terminal of its own kind, which a JsonMachine reads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "finish.h"
#include "json_limit.h"
#include "json_mask.h"

namespace vitrine::constrain {

/// Marks a terminal, or a place in one, that is JSON: the rest is an index.
inline constexpr uint32_t kJsonPlace = 0x80000000;
/// Marks, in a key of Crossings, that one stands within a string of it.
inline constexpr uint32_t kInJsonString = 0x40000000;

/// Nodes of the vocabulary's trie at which a terminal may end while tokens go on. Constraints of
/// one grammar share it.
class Crossings {
 public:
  explicit Crossings(const TokenTable::Impl& table) : table_(table) {}
  /// Those from a state of a terminal, where one of the bytes `behind` goes on.
  const std::vector<uint32_t>& of_state(RegexPool& pool, NodeId state, const ByteSet& behind);
  /// Those for JSON text that ends with one of `ends`, wherever in it one stands; `in_string`:
  /// within a string or a key, which a quote must end first.
  const std::vector<uint32_t>& of_json(uint32_t index, bool in_string, const ByteSet& ends,
                                       const ByteSet& behind);
  /// Tokens that stay within a terminal and leave at most so many tokens to its end.
  struct Needed {
    uint32_t most = 0;
    std::vector<uint32_t> words;
  };
  /// Those of a state; the few of which nothing is known are left out.
  const Needed& needed(RegexPool& pool, FinishTexts& texts, const TerminalMask& terminal,
                       NodeId state);

 private:
  struct Key {
    uint32_t state = 0;
    ByteSet behind;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    size_t operator()(const Key& key) const {
      uint64_t hash = key.state;
      for (const uint64_t word : key.behind.words) hash = mix_hash(hash, word);
      return hash;
    }
  };
  template <typename Make>
  const std::vector<uint32_t>& find(const Key& key, Make&& make);
  const TokenTable::Impl& table_;
  std::unordered_map<Key, std::vector<uint32_t>, KeyHash> lists_;
  std::unordered_map<NodeId, Needed> needed_;
};

struct ContextFree {
  struct Symbol {
    bool is_rule = false;
    uint32_t id = 0;  // rule, state of a terminal, or kJsonPlace and an index in `json`
  };
  struct Production {
    uint32_t rule = 0;
    std::vector<Symbol> symbols;
  };
  struct Rule {
    std::vector<uint32_t> productions;
    bool is_nullable = false;
    bool has_text = false;
    std::string text;    // a short text of it, where there is one that is written out
    uint64_t least = 0;  // bytes of each of its texts, or fewer
    uint32_t named = 0;  // in `names`: itself, or the rule that it is a part of
  };
  /// JSON text under a schema; what constraints share of it.
  struct Json {
    std::unique_ptr<JsonGrammar> grammar;
    std::unique_ptr<FinishTexts> texts;
    std::unique_ptr<TerminalMasks> masks;
    std::string text;     // a short text of it
    ByteSet first, ends;  // bytes that it may begin and end with
  };
  std::vector<Production> productions;
  std::vector<Rule> rules;
  std::vector<std::string> names;
  std::vector<std::unique_ptr<Json>> json;
  std::unique_ptr<Crossings> crossings;
  uint32_t root = 0;
  std::vector<std::pair<uint32_t, std::string>> roots;  // rules that must end, as errors name them
  size_t max_items = 0;
  const std::string& name_of(uint32_t rule) const { return names[rules[rule].named]; }
};

/// Sets is_nullable and text, and what `json` needs. Throws kInvalidArgument where one of `roots`
/// has no text of finite length.
void complete(ContextFree& grammar, FinishTexts& texts, RegexPool& pool);

/// The readings of a text so far: one set of items for each byte, in a stack.
class EarleyParser {
 public:
  EarleyParser(const ContextFree& grammar, RegexPool& pool, FinishTexts& texts,
               TerminalMasks& masks);
  EarleyParser(const EarleyParser& other);
  EarleyParser& operator=(const EarleyParser&) = delete;

  /// What follows is counted as the work for one token, up to the next call. Functions throw
  /// kUnsupported where it is more than the grammar's limit of items stands for.
  void begin_work() { work_ = 0; }
  /// Reads a byte; false, and nothing has changed, where no reading goes on so. Throws kUnsupported
  /// for more items than the grammar's limit.
  bool step(uint8_t byte);
  /// Number of bytes read.
  size_t length() const { return sets_.size() - 1; }
  void drop_to(size_t length);
  /// Where its memory stands: what is made from here on is taken back by return_to().
  struct Place {
    size_t length = 0;
    std::vector<JsonMachine::Mark> readers;
  };
  Place place() const;
  void return_to(const Place& place);
  bool is_complete() const { return sets_.back().is_complete; }
  /// A text that finishes the answer. `text` may be null.
  uint32_t finish(std::string* text);
  uint32_t least_tokens();

  /// The bytes that step() takes.
  ByteSet taken_bytes();
  /// In words, the first `most` of `count`; `text` is what has been read.
  std::vector<std::string> readings(std::string_view text, size_t most, size_t& count) const;

  /// Adds a superset of the bytes that step() takes; with `is_plain` as JsonMachine::plain_bytes.
  bool next_bytes(bool is_plain, ByteSet& out);
  /// Adds the tokens that may come next to `mask`.
  void fill(std::span<uint32_t> mask);
  /// Takes out of `mask`, but for the tokens that end the sequence, what leaves more than `left`
  /// tokens to finish.
  void limit(std::span<uint32_t> mask, uint32_t left);

 private:
  /// Adds the bytes that go on from each terminal; `of_json` adds those of a place in JSON, once
  /// for each, and may say false to end it.
  template <typename OfJson>
  bool add_bytes(ByteSet& out, OfJson&& of_json);
  struct Item {
    uint32_t production = 0, dot = 0, origin = 0;
    NodeId state = kEmptyNode;  // within a terminal; for JSON, kJsonPlace and an index in places_
    bool operator==(const Item&) const = default;
  };
  struct Way {  // from behind a rule that began in a set to the end
    uint32_t rule = 0;
    Finish finish;
  };
  struct Set {
    size_t begin = 0;       // in items_
    size_t num_places = 0;  // that sets before it have
    bool is_complete = false;
    bool has_ways = false;
    std::vector<Way> ways;
  };

  /// A machine for one of the grammar's JSON terminals, and what goes with it.
  struct Reader {
    Reader(const ContextFree::Json& json, const TokenTable::Impl& table, JsonMachine from)
        : machine(std::move(from)),
          finish(machine, *json.texts),
          mask(machine, table, *json.masks),
          limit(machine, table, *json.masks, finish, *json.texts) {}
    JsonMachine machine;
    JsonFinish finish;
    JsonMask mask;
    JsonLimit limit;
  };
  /// A place in JSON. The first ones are the beginnings, one for each reader.
  struct InJson {
    uint32_t reader = 0;
    Configs configs;
    size_t begin = 0;  // the byte that the JSON text begins at; not of the first ones
  };
  struct Touched {  // where a reader's memory stood before a set
    size_t set = 0;
    uint32_t reader = 0;
    JsonMachine::Mark mark;
  };

  void count_work(size_t steps);
  void add(Item item);
  void add_one(const Item& item);
  void close();
  void begin_set();
  void drop_set();
  NodeId step_terminal(NodeId state, uint8_t byte);
  NodeId step_json(uint32_t place, uint8_t byte);
  bool may_end(NodeId state) const {
    if (state & kJsonPlace) {
      const InJson& place = places_[state & ~kJsonPlace];
      return readers_[place.reader]->machine.is_complete(place.configs);
    }
    return pool_.nullable(state);
  }
  Finish rest_of_terminal(NodeId state);
  ByteSet bytes_behind(const Item& item);
  void add_crossing(std::span<const uint32_t> nodes, std::span<uint32_t> mask);
  void walk(uint32_t node, std::span<uint32_t> mask);
  void advance(const Item& item) { add({item.production, item.dot + 1, item.origin, kEmptyNode}); }
  size_t end_of(size_t set) const {
    return set + 1 < sets_.size() ? sets_[set + 1].begin : items_.size();
  }
  std::string symbol_text(const ContextFree::Symbol& symbol) const;
  std::string rules_around(const Item& item) const;
  uint32_t rest_of(const Item& item, std::string* text);
  uint32_t tokens_behind(const Item& item);
  void find_all_ways();
  const Finish& way(uint32_t set, uint32_t rule);
  void find_ways(uint32_t set);

  const ContextFree& grammar_;
  RegexPool& pool_;
  FinishTexts& texts_;
  TerminalMasks& masks_;
  std::vector<Item> items_;
  std::vector<Set> sets_;
  size_t sets_with_ways_ = 0;  // the first ones
  std::vector<std::unique_ptr<Reader>> readers_;
  std::vector<InJson> places_;
  std::vector<Touched> touched_;
  std::vector<std::pair<uint32_t, NodeId>> stepped_;  // places, and what the present byte made
  Configs next_;
  size_t work_ = 0;
  std::vector<uint64_t> predicted_;  // by rule: the close() that did it last
  uint64_t last_close_ = 0;
};

}  // namespace vitrine::constrain
