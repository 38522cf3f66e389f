#include "regex_parse.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "char_ranges.h"
#include "regex_syntax.h"

namespace vitrine::constrain {

namespace {

constexpr size_t kMaxWork = 20000;

/// Turns the tree into a language of the texts that remain from here on: what follows an element is
/// compiled before it, so that lookahead is an intersection with it and `$` one with nothing.
class Compiler {
 public:
  Compiler(RegexPool& pool, NodeId tail) : pool_(pool), tail_(tail) {}

  NodeId sequence(const std::vector<const Syntax*>& items, size_t at, bool start) {
    if (++work_ > kMaxWork) throw PatternError{"its anchors and lookaheads multiply too far"};
    if (at == items.size()) return tail_;
    const Syntax& item = *items[at];
    if (!item.has_assertion) return plain(items, at, start);
    switch (item.kind) {
      case Syntax::kStart: return start ? sequence(items, at + 1, true) : kEmptyNode;
      case Syntax::kEnd: return pool_.all_of(sequence(items, at + 1, start), kEpsilonNode);
      case Syntax::kLookahead: {
        const NodeId seen =
            Compiler(pool_, pool_.any_text()).sequence({&item.children[0]}, 0, start);
        const NodeId rest = sequence(items, at + 1, start);
        return pool_.all_of(rest, item.negative ? pool_.text_complement(seen) : seen);
      }
      case Syntax::kAlternatives: {
        std::vector<NodeId> out;
        for (const Syntax& child : item.children) {
          out.push_back(spliced({&child}, items, at + 1, start));
        }
        return pool_.any_of(std::move(out));
      }
      case Syntax::kSequence: {
        std::vector<const Syntax*> children;
        for (const Syntax& child : item.children) children.push_back(&child);
        return spliced(std::move(children), items, at + 1, start);
      }
      default: break;
    }
    if (item.high > 8) throw PatternError{"an anchor or lookahead stands in a repetition"};
    std::vector<NodeId> out;
    for (uint32_t count = item.low; count <= item.high; ++count) {
      out.push_back(
          spliced(std::vector<const Syntax*>(count, &item.children[0]), items, at + 1, start));
    }
    return pool_.any_of(std::move(out));
  }

 private:
  NodeId spliced(std::vector<const Syntax*> head, const std::vector<const Syntax*>& items,
                 size_t at, bool start) {
    head.insert(head.end(), items.begin() + static_cast<long>(at), items.end());
    return sequence(head, 0, start);
  }

  NodeId plain(const std::vector<const Syntax*>& items, size_t at, bool start) {
    const bool start_matters =
        start && std::any_of(items.begin() + static_cast<long>(at) + 1, items.end(),
                             [](const Syntax* item) { return item->has_start; });
    if (!start_matters) {  // up to the next assertion, without recursion
      size_t end = at + 1;
      while (end < items.size() && !items[end]->has_assertion) ++end;
      NodeId out = sequence(items, end, false);
      while (end-- > at) out = pool_.cat(language(*items[end]), out);
      return out;
    }
    const NodeId head = language(*items[at]);
    if (!pool_.nullable(head)) return pool_.cat(head, sequence(items, at + 1, false));
    const NodeId some = pool_.all_of(head, pool_.repeat(pool_.any_char(), 1, kUnbounded));
    return pool_.any_of(sequence(items, at + 1, true),
                        pool_.cat(some, sequence(items, at + 1, false)));
  }

  /// Of an element without anchors or lookahead.
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
  NodeId tail_;
  size_t work_ = 0;
};

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
  if (scope == PatternScope::kWhole) return Compiler(pool, kEpsilonNode).sequence({&tree}, 0, true);
  Compiler compiler(pool, pool.any_text());
  if (!tree.has_start) return pool.cat(pool.any_text(), compiler.sequence({&tree}, 0, false));
  const NodeId later = compiler.sequence({&tree}, 0, false);
  const NodeId some = pool.repeat(pool.any_char(), 1, kUnbounded);
  return pool.any_of(compiler.sequence({&tree}, 0, true), pool.cat(some, later));
}

}  // namespace vitrine::constrain
