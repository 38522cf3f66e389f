// SPDX-License-Identifier: Apache-2.0
#include "regex_parse.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "char_ranges.h"
#include "regex_syntax.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxWork = 20000;

/// With the position of the first assertion of this kind.
[[noreturn]] void refuse(const Syntax& item, const char* what,
                         bool Syntax::*kind = &Syntax::has_assertion) {
  const Syntax* at = &item;
  while (at->position == 0) {
    at = &*std::find_if(at->children.begin(), at->children.end(),
                        [kind](const Syntax& child) { return child.*kind; });
  }
  throw PatternError{what + std::string(" at character ") + std::to_string(at->position)};
}

/// What the lookbehinds of a pattern need to know of the text before them: an automaton that reads
/// the text from its start on, whose states say which of them hold.
class TextBefore {
 public:
  /// Collects the lookbehinds of `tree`, but for those within lookbehinds, and `^`.
  TextBefore(RegexPool& pool, const Syntax& tree) : pool_(pool) {
    collect(tree);
    // The text before is the empty one, and is text at all; then each lookbehind.
    std::vector<NodeId> start = {kEpsilonNode, pool.any_text()};
    start.insert(start.end(), languages_.begin(), languages_.end());
    std::map<std::vector<NodeId>, uint16_t> numbers = {{start, 0}};
    std::vector<std::vector<NodeId>> states = {start};
    ByteAutomaton automaton;
    for (size_t at = 0; at < states.size(); ++at) {
      uint64_t holds = 0;
      for (size_t i = 0; i < start.size(); ++i) {
        holds |= uint64_t{pool.nullable(states[at][i])} << i;
      }
      automaton.holds.push_back(holds);
      automaton.rows.emplace_back();
      for (size_t byte = 0; byte < 256; ++byte) {
        std::vector<NodeId> next = states[at];
        for (NodeId& part : next) part = pool.row(part)[byte];
        automaton.rows[at][byte] = ByteAutomaton::kNoState;
        if (next[kIsText] == kEmptyNode) continue;
        const auto [known, is_new] =
            numbers.try_emplace(next, static_cast<uint16_t>(states.size()));
        automaton.rows[at][byte] = known->second;
        if (is_new) states.push_back(std::move(next));
      }
      if (states.size() > kMaxStates) {
        refuse(tree, "lookbehinds with too many states, the first", &Syntax::has_lookbehind);
      }
    }
    index_ = pool.add_automaton(automaton.smallest());
    for (uint32_t state = 0; state < pool.automaton(index_).size(); ++state) {
      if (has(state, kIsText)) whole_.push_back(state);
    }
  }

  bool is_start(uint32_t state) const { return has(state, kIsEmpty); }
  bool holds(const Syntax& lookbehind, uint32_t state) const {
    return has(state, conditions_.at(&lookbehind)) != lookbehind.negative;
  }
  /// States that a text of whole characters leads to.
  const std::vector<uint32_t>& whole() const { return whole_; }
  NodeId walk(uint32_t from, std::vector<uint32_t> to) const {
    return pool_.walk(index_, from, std::move(to));
  }

 private:
  static constexpr size_t kMaxStates = 512, kMaxConditions = 64;
  enum : size_t { kIsEmpty, kIsText, kFirst };

  bool has(uint32_t state, size_t condition) const {
    return (pool_.automaton(index_).holds[state] >> condition & 1) != 0;
  }
  void collect(const Syntax& item) {
    if (!item.has_lookbehind) return;
    if (item.kind != Syntax::kLookbehind) {
      for (const Syntax& child : item.children) collect(child);
      return;
    }
    const NodeId language = text_that_ends_with(pool_, item.children[0]);
    const auto known = std::find(languages_.begin(), languages_.end(), language);
    conditions_[&item] = kFirst + static_cast<size_t>(known - languages_.begin());
    if (known == languages_.end()) languages_.push_back(language);
    if (kFirst + languages_.size() > kMaxConditions) {
      refuse(item, "too many lookbehinds, the 63rd");
    }
  }
  static NodeId text_that_ends_with(RegexPool& pool, const Syntax& body);

  RegexPool& pool_;
  uint32_t index_ = 0;
  std::vector<NodeId> languages_;
  std::map<const Syntax*, size_t> conditions_;
  std::vector<uint32_t> whole_;
};

/// What is known of the text before a place.
struct Place {
  bool start;      // it is empty
  uint32_t state;  // where it leads TextBefore
  auto operator<=>(const Place&) const = default;
};

/// Turns the tree into a language of the texts that remain from here on: what follows an element is
/// compiled before it, so that lookahead is an intersection with it and `$` one with nothing. An
/// element before a lookbehind is split by what its texts do to the state of the text before.
class Compiler {
 public:
  /// `before`: null where there is no lookbehind.
  Compiler(RegexPool& pool, const TextBefore* before, NodeId tail)
      : pool_(pool), before_(before), tail_(tail) {}

  NodeId sequence(const std::vector<const Syntax*>& items, size_t at, Place place) {
    if (++work_ > kMaxWork) throw PatternError{"its anchors and lookarounds multiply too far"};
    if (at == items.size()) return tail_;
    if (depth_ == kMaxDepth) throw PatternError{"too many anchors and lookarounds in a row"};
    ++depth_;
    const NodeId out = next(items, at, place);
    --depth_;
    return out;
  }

  /// Texts of `head`, then the items, for each place that `head` may lead to.
  NodeId behind(NodeId head, const std::vector<const Syntax*>& items, size_t at, Place place) {
    std::map<NodeId, std::vector<uint32_t>> states;  // by what may follow
    for (const uint32_t next : before_->whole()) {
      if (!pool_.is_live(pool_.all_of(head, before_->walk(place.state, {next})))) continue;
      states[sequence(items, at, {before_->is_start(next), next})].push_back(next);
    }
    std::vector<NodeId> out;
    for (const auto& [rest, to] : states) {
      const NodeId some =
          states.size() == 1 ? head : pool_.all_of(head, before_->walk(place.state, to));
      out.push_back(pool_.cat(some, rest));
    }
    return pool_.any_of(std::move(out));
  }

 private:
  static constexpr size_t kMaxKnown = 100;  // items: bounds the memory
  static constexpr int kMaxDepth = 500;     // bounds the stack, and the copies of items on it
  using Known = std::pair<std::vector<const Syntax*>, Place>;

  NodeId next(const std::vector<const Syntax*>& items, size_t at, Place place) {
    const Syntax& item = *items[at];
    if (!item.has_assertion) return plain(items, at, place);
    if (items.size() - at > kMaxKnown) return assertion(items, at, place);
    const Known key = {{items.begin() + static_cast<long>(at), items.end()}, place};
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
    return known_[key] = assertion(items, at, place);
  }

  /// The node of an item that is or has an assertion, and of those behind it.
  NodeId assertion(const std::vector<const Syntax*>& items, size_t at, Place place) {
    const Syntax& item = *items[at];
    switch (item.kind) {
      case Syntax::kStart: return place.start ? sequence(items, at + 1, place) : kEmptyNode;
      case Syntax::kEnd: return pool_.all_of(sequence(items, at + 1, place), kEpsilonNode);
      case Syntax::kLookahead: {
        const NodeId seen =
            Compiler(pool_, before_, pool_.any_text()).sequence({&item.children[0]}, 0, place);
        const NodeId rest = sequence(items, at + 1, place);
        return pool_.all_of(rest, item.negative ? pool_.text_complement(seen) : seen);
      }
      case Syntax::kLookbehind:
        return before_->holds(item, place.state) ? sequence(items, at + 1, place) : kEmptyNode;
      case Syntax::kAlternatives: {
        std::vector<NodeId> out;
        for (const Syntax& child : item.children) {
          out.push_back(spliced({&child}, items, at + 1, place));
        }
        return pool_.any_of(std::move(out));
      }
      case Syntax::kSequence: {
        std::vector<const Syntax*> children;
        for (const Syntax& child : item.children) children.push_back(&child);
        return spliced(std::move(children), items, at + 1, place);
      }
      default: break;
    }
    if (const auto out = guarded_characters(items, at, place)) return *out;
    if (item.high > 8) refuse(item, "an anchor, lookaround or word boundary in a repetition");
    std::vector<NodeId> out;
    for (uint32_t count = item.low; count <= item.high; ++count) {
      out.push_back(
          spliced(std::vector<const Syntax*>(count, &item.children[0]), items, at + 1, place));
    }
    return pool_.any_of(std::move(out));
  }

  static const Syntax& unwrapped(const Syntax& item) {
    const Syntax* at = &item;
    while ((at->kind == Syntax::kSequence || at->kind == Syntax::kAlternatives) &&
           at->children.size() == 1) {
      at = &at->children[0];
    }
    return *at;
  }

  /// (?:(?!X)C)* for one character C, where a text has one way at most to be such characters and
  /// then the rest: no part that begins within them is one that X forbids.
  std::optional<NodeId> guarded_characters(const std::vector<const Syntax*>& items, size_t at,
                                           Place place) {
    const Syntax& item = *items[at];
    const Syntax& body = unwrapped(item.children[0]);
    if (item.high != kUnbounded || before_ != nullptr || item.has_start ||
        body.kind != Syntax::kSequence || body.children.size() != 2) {
      return std::nullopt;
    }
    const Syntax &look = body.children[0], &character = body.children[1];
    const bool start_matters =
        place.start && std::any_of(items.begin() + static_cast<long>(at), items.end(),
                                   [](const Syntax* one) { return one->has_start; });
    if (look.kind != Syntax::kLookahead || character.has_assertion || start_matters) {
      return std::nullopt;
    }
    const NodeId rest = sequence(items, at + 1, place);
    const NodeId one = language(character);
    if (pool_.one_length(one) != 1U) return std::nullopt;
    const bool is_apart = !pool_.is_live(pool_.all_of(rest, pool_.cat(one, pool_.any_text())));
    if (!is_apart && !pool_.one_length(rest)) return std::nullopt;
    const NodeId seen =
        Compiler(pool_, before_, pool_.any_text()).sequence({&look.children[0]}, 0, place);
    const NodeId some = pool_.cat(pool_.repeat(one, 1, kUnbounded), rest);
    const NodeId broken = pool_.all_of(some, look.negative ? seen : pool_.text_complement(seen));
    return pool_.all_of(pool_.cat(pool_.repeat(one, item.low, kUnbounded), rest),
                        pool_.text_complement(pool_.cat(pool_.repeat(one, 0, kUnbounded), broken)));
  }

  NodeId spliced(std::vector<const Syntax*> head, const std::vector<const Syntax*>& items,
                 size_t at, Place place) {
    head.insert(head.end(), items.begin() + static_cast<long>(at), items.end());
    return sequence(head, 0, place);
  }

  NodeId plain(const std::vector<const Syntax*>& items, size_t at, Place place) {
    const auto later = [&](auto&& test) {
      return std::any_of(items.begin() + static_cast<long>(at) + 1, items.end(), test);
    };
    const bool start_matters =
        place.start && later([](const Syntax* item) { return item->has_start; });
    const bool state_matters =
        before_ != nullptr &&
        (start_matters || later([](const Syntax* item) { return item->has_lookbehind; }));
    if (state_matters || !start_matters) {  // up to the next assertion, without recursion
      size_t end = at + 1;
      while (end < items.size() && !items[end]->has_assertion) ++end;
      NodeId out = state_matters ? kEpsilonNode : sequence(items, end, {false, place.state});
      for (size_t i = end; i-- > at;) out = pool_.cat(language(*items[i]), out);
      return state_matters ? behind(out, items, end, place) : out;
    }
    const NodeId head = language(*items[at]);
    if (!pool_.nullable(head)) return pool_.cat(head, sequence(items, at + 1, {false, 0}));
    const NodeId some = pool_.all_of(head, pool_.repeat(pool_.any_char(), 1, kUnbounded));
    return pool_.any_of(sequence(items, at + 1, place),
                        pool_.cat(some, sequence(items, at + 1, {false, 0})));
  }

  /// The node of an element without anchors or lookahead.
  NodeId language(const Syntax& item) {
    switch (item.kind) {
      case Syntax::kChars: return pool_.characters(item.chars);
      case Syntax::kSequence: {
        NodeId out = kEpsilonNode;
        for (size_t i = item.children.size(); i-- > 0;) {
          out = pool_.cat(language(item.children[i]), out);
        }
        return out;
      }
      case Syntax::kAlternatives: {
        std::vector<NodeId> out;
        for (const Syntax& child : item.children) out.push_back(language(child));
        return pool_.any_of(std::move(out));
      }
      default: return pool_.repeat(language(item.children[0]), item.low, item.high);
    }
  }

  RegexPool& pool_;
  const TextBefore* before_;
  NodeId tail_;
  size_t work_ = 0;
  int depth_ = 0;
  std::map<Known, NodeId> known_;
};

/// Texts of which some end, or (`is_whole`) all, matches the tree, each then followed by `tail`.
NodeId compile(RegexPool& pool, const Syntax& tree, bool is_whole, NodeId tail) {
  std::optional<TextBefore> before;
  if (tree.has_lookbehind) before.emplace(pool, tree);
  Compiler compiler(pool, before ? &*before : nullptr, tail);
  const std::vector<const Syntax*> items = {&tree};
  if (is_whole) return compiler.sequence(items, 0, {true, 0});
  if (before) return compiler.behind(pool.any_text(), items, 0, {true, 0});
  const NodeId later = compiler.sequence(items, 0, {false, 0});
  if (!tree.has_start) return pool.cat(pool.any_text(), later);
  const NodeId some = pool.repeat(pool.any_char(), 1, kUnbounded);
  return pool.any_of(compiler.sequence(items, 0, {true, 0}), pool.cat(some, later));
}

/// What a lookbehind sees ends where it stands.
void refuse_lookahead(const Syntax& item) {
  if (item.kind == Syntax::kLookahead || item.kind == Syntax::kEnd) {
    refuse(item, "what looks ahead within a lookbehind");
  }
  if (!item.has_assertion) return;
  for (const Syntax& child : item.children) refuse_lookahead(child);
}

NodeId TextBefore::text_that_ends_with(RegexPool& pool, const Syntax& body) {
  refuse_lookahead(body);
  return compile(pool, body, false, kEpsilonNode);
}

/// A class that reaches the last code point is one that leaves characters out.
void fold_case(Syntax& item) {
  if (!item.chars.empty() && item.chars.back().high == kMaxCodePoint) {
    item.chars = complement(fold_ascii_case(complement(item.chars)));
  } else {
    item.chars = fold_ascii_case(item.chars);
  }
  for (Syntax& child : item.children) fold_case(child);
}

}  // namespace

NodeId compile_pattern(RegexPool& pool, std::string_view pattern, PatternScope scope,
                       bool ignore_case) {
  Syntax tree = parse_syntax(pattern);
  if (ignore_case) fold_case(tree);
  if (scope == PatternScope::kPart && tree.has_lookbehind) {
    refuse(tree, "a lookbehind or word boundary, where the text before is not known,",
           &Syntax::has_lookbehind);
  }
  if (scope == PatternScope::kSearch) return compile(pool, tree, false, pool.any_text());
  return compile(pool, tree, true, kEpsilonNode);
}

}  // namespace vitrine::constrain
