// SPDX-License-Identifier: Apache-2.0
// The room `constrain`: which tokens may come next under a JSON Schema, a regular expression, a
// context-free grammar or a list of choices. Token byte strings in, a bitmask out; it knows no
// model and no tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vitrine/constraint.h"
#include "vitrine/core.h"

namespace vitrine {

namespace constrain {
struct TableAccess;
}

/// The vocabulary as constraints see it: what bytes each id adds. Immutable; copies share.
class VITRINE_API TokenTable {
 public:
  /// Makes a table of no id.
  TokenTable();
  /// `token_bytes`: [vocab_size], empty for an id that adds no text of its own (special tokens,
  /// unused ids): such an id is never allowed, except those of `end_ids`, which end the sequence
  /// and are allowed exactly where an answer is complete. Throws kInvalidArgument for an end id out
  /// of range, a vocabulary above 16,777,216 ids or a token above 1024 bytes.
  static TokenTable from_bytes(std::vector<std::string> token_bytes, std::vector<int32_t> end_ids);

  /// Returns a table in which these ids are never allowed, not even to end the sequence: what is
  /// known about finishing an answer holds without them. Throws kInvalidArgument for an id out of
  /// range.
  TokenTable without(std::span<const int32_t> banned) const;
  /// Returns a table in which these ids add these bytes: special tokens that an answer writes. It
  /// is this same table where they add them already; ids that end the sequence stay what they are.
  /// Throws kInvalidArgument for an id out of range.
  TokenTable with(std::span<const std::pair<int32_t, std::string>> token_bytes) const;

  /// Returns the number of ids, allowed or not.
  int32_t vocab_size() const;
  /// Throws kInvalidArgument for an id out of range.
  const std::string& bytes(int32_t id) const;
  /// Returns the ids that end the sequence.
  std::span<const int32_t> end_ids() const;
  /// Returns the words of a mask: ceil(vocab_size / 32).
  size_t mask_words() const { return (static_cast<size_t>(vocab_size()) + 31) / 32; }

  /// What grammars over this table share: masks of patterns, formats and the like, by what is left
  /// of them. Thread-safe; the masks used longest ago leave where there are too many bytes.
  struct SharedStatistics {
    uint64_t hits = 0;       ///< masks that were found
    uint64_t misses = 0;     ///< masks that were computed
    uint64_t evictions = 0;  ///< masks that had to leave
    size_t masks = 0;        ///< masks that are kept now
    size_t bytes = 0;        ///< bytes of the kept masks
  };
  /// Returns the counts so far.
  SharedStatistics shared_statistics() const;
  /// Limits the bytes of the shared masks, for all copies of this table. The limit is 64 MiB at
  /// first; 0 shares nothing.
  void limit_shared(size_t max_bytes) const;

  struct Impl;

 private:
  friend struct constrain::TableAccess;  // the room's own
  std::shared_ptr<const Impl> impl_;
};

/// White space between the parts of JSON.
enum class JsonWhitespace : uint8_t {
  kRfc,      ///< any amount of space, tab, line feed and carriage return (RFC 8259)
  kOneLine,  ///< at most one space, after a comma or a colon
  kCompact,  ///< none
};

/// The order in which an object's keys may stand.
enum class JsonKeyOrder : uint8_t {
  kAny,
  kSchema,  ///< keys of `properties` as the schema writes them, then all others in any order
};

/// What `format` means.
enum class JsonFormat : uint8_t {
  kAssert,    ///< a string must have the format; names that are not known only annotate
  kAnnotate,  ///< nothing
};

/// Which rules hold where a schema has no `$schema`.
enum class SchemaDialect : uint8_t { kDraft4, kDraft6, kDraft7, kDraft2019, kDraft2020 };

/// How a number is written that has to be whole by its schema: by type integer, by a `multipleOf`
/// that is whole, or as a value of `enum` or `const`.
enum class JsonIntegers : uint8_t {
  kPlain,  ///< without fraction or exponent; a broken value of `enum` or `const` without idle zeros
  kAny,    ///< with a fraction of zeros, too (`10.0`), as JSON Schema allows it
};

/// How a JSON Schema is read.
struct SchemaOptions {
  /// Returns the options under which every spelling counts that RFC 8259 and JSON Schema allow, to
  /// judge texts that others have written: any white space, integers with `.0`, any digits.
  static SchemaOptions every_spelling() {
    SchemaOptions options;
    options.whitespace = JsonWhitespace::kRfc;
    options.integers = JsonIntegers::kAny;
    options.max_digits = 0;
    return options;
  }

  JsonFormat format = JsonFormat::kAssert;               ///< what `format` means
  JsonWhitespace whitespace = JsonWhitespace::kOneLine;  ///< between the parts of an answer
  SchemaDialect dialect = SchemaDialect::kDraft2020;     ///< of a schema that names none
  JsonKeyOrder key_order = JsonKeyOrder::kAny;           ///< of an object in an answer
  JsonIntegers integers = JsonIntegers::kPlain;          ///< of a number in an answer
  /// Digits of a number before its point, and behind it, at most; an exponent has 3 then. A schema
  /// that names longer numbers has three more than the longest. 0: any number of digits.
  uint32_t max_digits = 22;
  /// True closes each object of the schema that has `properties` and no `additionalProperties`, as
  /// if that were false; but for those within `not` and `if`.
  bool close_objects = false;
  /// True leaves out of a schema what cannot be kept exactly, in place of refusing it, and tells it
  /// in Grammar::weakened(): an answer may then be one that the schema does not accept.
  bool lenient = false;
  /// Texts that no string and no key of an answer may hold, also where escapes spell them.
  std::vector<std::string> excludes = {};
  /// Alternatives that one value may have at once: objects or arrays that oneOf, anyOf, not and the
  /// like leave open. A schema that needs more is refused.
  size_t max_alternatives = 512;
  /// Automaton states of one compiled grammar, compiled ahead or made while matching.
  size_t max_states = size_t{1} << 20;
};

/// A keyword that was left out of a schema (SchemaOptions::lenient).
struct Weakening {
  std::string pointer;  ///< of the keyword; oneOf is read as anyOf, others do not count at all
  std::string reason;   ///< why it could not be kept
};

/// What a grammar may use up.
struct GrammarOptions {
  /// Places in rules that one constraint may be at, all bytes of the answer together: bounds its
  /// memory and work.
  size_t max_items = size_t{1} << 20;
  /// Automaton states of the terminals, of a regular expression, of choices.
  size_t max_states = size_t{1} << 20;
  SchemaOptions schema;  ///< of JSON within the grammar
};

/// How a grammar is written.
enum class GrammarNotation : uint8_t { kGbnf, kLark };
/// The notation that a grammar's first rule is in: GBNF writes "::=", Lark ":".
VITRINE_API GrammarNotation grammar_notation(std::string_view text);

/// A compiled grammar. Copies share it; start() may be called from any thread, and the constraints
/// that it makes may run on different threads: they read side by side what is compiled, and one at
/// a time adds to it.
///
///     const auto table = TokenTable::from_bytes(token_bytes, {end_id});
///     const auto grammar = Grammar::json_schema(table, R"({"type":"integer"})");
///     const std::unique_ptr<Constraint> constraint = grammar.start();
///     std::vector<uint32_t> mask(table.mask_words());
///     constraint->allowed_tokens(mask);
class VITRINE_API Grammar {
 public:
  /// Accepts the JSON texts that a JSON Schema accepts, no key twice in one object. Numbers under
  /// minimum, maximum, multipleOf, const, enum or type integer are written without an exponent,
  /// whole ones as SchemaOptions::integers says. Throws kBadFile for a schema that is no JSON or
  /// malformed, kUnsupported for what cannot be kept exactly; the message has a JSON pointer.
  static Grammar json_schema(const TokenTable& table, std::string_view schema,
                             const SchemaOptions& options = {});
  /// Accepts any JSON text (RFC 8259); keys may repeat. The options `whitespace`, `max_digits` and
  /// `max_states` count.
  static Grammar json(const TokenTable& table, const SchemaOptions& options = {});
  /// Accepts the texts that a regular expression (ECMA-262's syntax) matches whole. Throws
  /// kInvalidArgument with the position of a mistake and of what cannot be kept (back references,
  /// lookaround in long repetitions), kUnsupported for what exceeds GrammarOptions::max_states,
  /// while matching too.
  static Grammar regex(const TokenTable& table, std::string_view pattern,
                       const GrammarOptions& options = {});
  /// Accepts exactly one of these texts. Throws kInvalidArgument where there is none or one is not
  /// UTF-8, kUnsupported for what exceeds GrammarOptions::max_states, while matching too.
  static Grammar choices(const TokenTable& table, std::vector<std::string> texts,
                         const GrammarOptions& options = {});
  /// Accepts the texts of a context-free grammar in GBNF, llama.cpp's notation, whose first rule is
  /// `root`; left recursion and ambiguity included. Throws kInvalidArgument with line and column
  /// for what does not parse and for rules that are undefined or cannot be reached, and where no
  /// text ends; kUnsupported for what exceeds the options, while matching too.
  static Grammar gbnf(const TokenTable& table, std::string_view text,
                      const GrammarOptions& options = {});

  /// Accepts the texts of a context-free grammar in Lark's notation, in the variant that llguidance
  /// reads, from the rule `start` on (docs/constraints.md says what is read). Throws as gbnf()
  /// does, and kUnsupported for what is valid there and not kept.
  static Grammar lark(const TokenTable& table, std::string_view text,
                      const GrammarOptions& options = {});
  /// Accepts free text in which tags switch constraints on, as a JSON document says it: structural
  /// tags as XGrammar and SGLang have them (docs/constraints.md lists what is read). Between tags
  /// stands any text that holds no trigger. Throws kBadFile with a JSON pointer for what is
  /// malformed, kUnsupported for what is not kept, what json_schema(), regex() and gbnf() throw for
  /// what stands in tags.
  static Grammar tags(const TokenTable& table, std::string_view json,
                      const GrammarOptions& options = {});

  /// Returns a constraint that stands at the start of an answer.
  std::unique_ptr<Constraint> start() const;

  /// Returns the keywords of the schemas within that do not count, in the order in which they were
  /// left out.
  const std::vector<Weakening>& weakened() const;

  /// What compiling and matching have made so far.
  struct Statistics {
    size_t states = 0;  ///< automaton states
    size_t rows = 0;    ///< automaton states with a transition table (1 KiB each)
    size_t values = 0;  ///< distinct conjunctions of schemas
    size_t shapes = 0;  ///< distinct objects and arrays
  };
  /// Returns the counts so far.
  Statistics statistics() const;
  /// Returns about how many bytes of memory take what is compiled so far.
  size_t num_bytes() const;

  /// Compiles ahead what a first answer is likely to need, at most `max_masks` masks: those along
  /// the shortest answer. A host may call it on a thread of its own while the prompt is computed;
  /// constraints of this grammar may be used meanwhile. Returns how many masks it made.
  size_t prepare(size_t max_masks = 64) const;

  struct Impl;

 private:
  explicit Grammar(std::shared_ptr<Impl> impl);
  struct Rules;
  static Grammar of_rules(const TokenTable& table, Rules rules);
  std::shared_ptr<Impl> impl_;
};

/// Compiled grammars, by what they are made from: a schema that comes again is not compiled again,
/// and has its masks. Thread-safe; bounded: those used longest ago leave, once their memory
/// together is above the limit (who has one keeps it). What a maker of Grammar throws is thrown
/// here, too, and nothing is kept.
///
///     GrammarCache cache;
///     const Grammar grammar = cache.json_schema(table, schema);
class VITRINE_API GrammarCache {
 public:
  /// Makes a cache that holds about so many bytes.
  explicit GrammarCache(size_t max_bytes = size_t{256} << 20);
  ~GrammarCache();
  GrammarCache(const GrammarCache&) = delete;
  GrammarCache& operator=(const GrammarCache&) = delete;

  /// Returns what Grammar::json_schema() makes.
  Grammar json_schema(const TokenTable& table, std::string_view schema,
                      const SchemaOptions& options = {});
  /// Returns what Grammar::json() makes.
  Grammar json(const TokenTable& table, const SchemaOptions& options = {});
  /// Returns what Grammar::regex() makes.
  Grammar regex(const TokenTable& table, std::string_view pattern,
                const GrammarOptions& options = {});
  /// Returns what Grammar::choices() makes.
  Grammar choices(const TokenTable& table, std::vector<std::string> texts,
                  const GrammarOptions& options = {});
  /// Returns what Grammar::gbnf() makes.
  Grammar gbnf(const TokenTable& table, std::string_view text, const GrammarOptions& options = {});
  /// Returns what Grammar::lark() makes.
  Grammar lark(const TokenTable& table, std::string_view text, const GrammarOptions& options = {});
  /// Returns what Grammar::tags() makes.
  Grammar tags(const TokenTable& table, std::string_view json, const GrammarOptions& options = {});

  /// What the cache has done so far.
  struct Statistics {
    uint64_t hits = 0;       ///< grammars that were found
    uint64_t misses = 0;     ///< grammars that were compiled
    uint64_t evictions = 0;  ///< grammars that had to leave
    size_t grammars = 0;     ///< grammars that are kept now
    size_t bytes = 0;        ///< bytes of the kept grammars
  };
  /// Returns the counts so far.
  Statistics statistics() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vitrine
