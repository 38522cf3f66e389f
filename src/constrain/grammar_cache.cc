// SPDX-License-Identifier: Apache-2.0
// Compiled grammars that are kept, and what is compiled ahead.
#include <bit>
#include <functional>
#include <list>
#include <map>
#include <optional>

#include "constraint_base.h"

namespace vitrine {

using constrain::JsonGrammar;
using constrain::NodeId;
using constrain::RegexPool;
using constrain::TerminalMasks;

namespace {

// What a mask is made at: the beginnings of the strings under a schema, where no text is plain.
void add_string_states(JsonGrammar& grammar, std::vector<NodeId>& out) {
  RegexPool& pool = grammar.pool();
  for (constrain::ValueId id = 0; id < grammar.num_values(); ++id) {
    if (!grammar.is_sealed(id)) continue;  // of those that may come
    const NodeId scalar = grammar.value(id).scalar;
    if (scalar == constrain::kEmptyNode) continue;
    const NodeId inside = pool.step(scalar, '"');
    if (inside == constrain::kEmptyNode) continue;
    const constrain::Node node = pool.node(inside);
    const bool is_made = node.kind == constrain::NodeKind::kJsonBody && node.a != pool.any_text();
    if (is_made) out.push_back(inside);
  }
}

}  // namespace

size_t Grammar::num_bytes() const {
  constexpr size_t kRow = 1024 + 64, kNode = 96, kShape = 512, kAutomatonState = 520;
  const auto of = [&](RegexPool& pool, const TerminalMasks& masks, const JsonGrammar* json) {
    return pool.num_rows() * kRow + pool.num_nodes() * kNode +
           pool.num_automaton_states() * kAutomatonState +
           masks.num_masks() * impl_->table.mask_words() * sizeof(uint32_t) +
           (json == nullptr ? 0 : (json->num_values() + json->num_shapes()) * kShape);
  };
  return impl_->lock.read([&] {
    size_t bytes = sizeof(Impl) + of(impl_->states(), *impl_->terminals, impl_->json.get());
    if (impl_->rules == nullptr) return bytes;
    for (const auto& json : impl_->rules->json) {
      bytes += of(json->grammar->pool(), *json->masks, json->grammar.get());
    }
    return bytes;
  });
}

size_t Grammar::prepare(size_t max_masks) const {
  size_t made = 0;
  const auto make = [&](TerminalMasks& masks, const std::vector<NodeId>& states) {
    for (const NodeId state : states) {
      if (made >= max_masks) return;
      // Others get in between two masks.
      made += impl_->lock.run_alone([&] {
        const size_t before = masks.num_masks();
        masks.at(state);
        return masks.num_masks() > before ? size_t{1} : 0;
      });
    }
  };
  const auto strings_of = [&](JsonGrammar& grammar) {
    return impl_->lock.run_alone([&grammar] {
      std::vector<NodeId> states;
      add_string_states(grammar, states);
      return states;
    });
  };
  try {
    if (impl_->json) make(*impl_->terminals, strings_of(*impl_->json));
    if (impl_->rules) {
      std::vector<NodeId> states;
      for (const auto& production : impl_->rules->productions) {
        for (const auto& symbol : production.symbols) {
          if (!symbol.is_rule && (symbol.id & constrain::kJsonPlace) == 0) {
            states.push_back(symbol.id);
          }
        }
      }
      make(*impl_->terminals, states);
      for (const auto& json : impl_->rules->json) make(*json->masks, strings_of(*json->grammar));
    }
    // Along a short answer.
    const auto constraint = start();
    std::vector<uint32_t> mask(impl_->table.mask_words());
    for (; made < max_masks && constraint->allowed_tokens(mask); ++made) {
      const uint32_t needed = constraint->tokens_to_finish();
      if (needed == 0 || needed == Constraint::kNoTokenBound ||
          !constraint->keep_within(mask, needed)) {
        break;
      }
      size_t word = 0;
      while (mask[word] == 0) ++word;
      if (!constraint->accept(static_cast<int32_t>(word * 32) + std::countr_zero(mask[word])))
        break;
    }
  } catch (const Error& error) {
    // A limit that was met here is told where it is met in use.
    if (error.kind() != ErrorKind::kUnsupported) throw;
  }
  return made;
}

struct GrammarCache::Impl {
  struct Entry {
    std::string key;
    Grammar grammar;
    size_t bytes = 0;
  };
  std::mutex mutex;          // guards all below
  std::list<Entry> entries;  // the one used last is first
  std::map<std::string_view, std::list<Entry>::iterator> places;
  size_t max_bytes = 0;
  Statistics counts;

  // What was compiled on demand since the last look counts, too.
  void measure(Entry& entry) {
    counts.bytes -= entry.bytes;
    entry.bytes = entry.key.size() + entry.grammar.num_bytes();
    counts.bytes += entry.bytes;
  }
  void shrink() {
    while (counts.bytes > max_bytes && !entries.empty()) {
      counts.bytes -= entries.back().bytes;
      ++counts.evictions;
      places.erase(entries.back().key);
      entries.pop_back();
    }
  }
  std::optional<Grammar> find(const std::string& key) {
    const std::lock_guard lock(mutex);
    const auto found = places.find(key);
    if (found == places.end()) {
      ++counts.misses;
      return {};
    }
    ++counts.hits;
    entries.splice(entries.begin(), entries, found->second);
    Grammar grammar = found->second->grammar;
    measure(*found->second);
    shrink();
    return grammar;
  }
  Grammar get(std::string key, const std::function<Grammar()>& make) {
    if (auto grammar = find(key)) return *std::move(grammar);
    Grammar grammar = make();  // outside the lock: others need not wait for it
    const std::lock_guard lock(mutex);
    if (const auto found = places.find(key); found != places.end()) return found->second->grammar;
    entries.push_front({std::move(key), grammar, 0});
    places.emplace(entries.front().key, entries.begin());
    measure(entries.front());
    shrink();
    return grammar;
  }
};

namespace {

// The table by where it is: a grammar that is kept keeps its table.
std::string key_of(const TokenTable& table, char kind, std::string_view text,
                   const SchemaOptions& schema = {}, const GrammarOptions* options = nullptr) {
  std::string key(1, kind);
  const auto add = [&key](uint64_t number) { key += std::to_string(number) + ' '; };
  add(reinterpret_cast<uintptr_t>(&constrain::impl_of(table)));
  // All members, by the compiler's count of them.
  const auto& [format, whitespace, dialect, key_order, integers, max_digits, close_objects, lenient,
               excludes, max_alternatives, max_states] = schema;
  for (const uint64_t member :
       {uint64_t(format), uint64_t(whitespace), uint64_t(dialect), uint64_t(key_order),
        uint64_t(integers), uint64_t(max_digits), uint64_t(close_objects), uint64_t(lenient),
        uint64_t(max_alternatives), uint64_t(max_states)}) {
    add(member);
  }
  add(excludes.size());
  for (const std::string& one : excludes) {
    add(one.size());
    key += one;
  }
  if (options != nullptr) {
    const auto& [items, states, of_json] = *options;
    add(items);
    add(states);
  }
  return key += text;
}

}  // namespace

GrammarCache::GrammarCache(size_t max_bytes) : impl_(std::make_unique<Impl>()) {
  impl_->max_bytes = max_bytes;
}
GrammarCache::~GrammarCache() = default;

Grammar GrammarCache::json_schema(const TokenTable& table, std::string_view schema,
                                  const SchemaOptions& options) {
  return impl_->get(key_of(table, 's', schema, options),
                    [&] { return Grammar::json_schema(table, schema, options); });
}
Grammar GrammarCache::json(const TokenTable& table, const SchemaOptions& options) {
  return impl_->get(key_of(table, 'j', "", options), [&] { return Grammar::json(table, options); });
}
Grammar GrammarCache::regex(const TokenTable& table, std::string_view pattern,
                            const GrammarOptions& options) {
  return impl_->get(key_of(table, 'r', pattern, options.schema, &options),
                    [&] { return Grammar::regex(table, pattern, options); });
}
Grammar GrammarCache::choices(const TokenTable& table, std::vector<std::string> texts,
                              const GrammarOptions& options) {
  std::string all;
  for (const std::string& text : texts) all += std::to_string(text.size()) + ':' + text;
  return impl_->get(key_of(table, 'c', all, options.schema, &options),
                    [&] { return Grammar::choices(table, std::move(texts), options); });
}
Grammar GrammarCache::gbnf(const TokenTable& table, std::string_view text,
                           const GrammarOptions& options) {
  return impl_->get(key_of(table, 'g', text, options.schema, &options),
                    [&] { return Grammar::gbnf(table, text, options); });
}
Grammar GrammarCache::lark(const TokenTable& table, std::string_view text,
                           const GrammarOptions& options) {
  return impl_->get(key_of(table, 'l', text, options.schema, &options),
                    [&] { return Grammar::lark(table, text, options); });
}
Grammar GrammarCache::tags(const TokenTable& table, std::string_view json,
                           const GrammarOptions& options) {
  return impl_->get(key_of(table, 't', json, options.schema, &options),
                    [&] { return Grammar::tags(table, json, options); });
}

GrammarCache::Statistics GrammarCache::statistics() const {
  const std::lock_guard lock(impl_->mutex);
  Statistics out = impl_->counts;
  out.grammars = impl_->entries.size();
  return out;
}

}  // namespace vitrine
