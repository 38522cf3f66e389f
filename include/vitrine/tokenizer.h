// SPDX-License-Identifier: Apache-2.0
// The room `tokenizer`: text to ids and back, as `tokenizer.json` describes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/core.h"

namespace vitrine {

/// A tokenizer read from Hugging Face's `tokenizer.json` (BPE over bytes, or over characters with
/// byte fallback as SentencePiece's are written).
///
/// Immutable after loading: any number of threads may encode and decode at once. Encoding equals
/// PyPI's `tokenizers` on the same file; invalid UTF-8 is first replaced by U+FFFD as Python's
/// `bytes.decode("utf-8", errors="replace")` does. The file's truncation and padding are left to
/// the caller. Unicode properties are those of `tokenizers` too, whatever the PCRE2 below knows.
class VITRINE_API Tokenizer {
 public:
  /// Reads a file. Throws kBadFile (names the file and the field) or kUnsupported (names the part).
  static Tokenizer from_file(const std::string& path);
  /// Parses JSON text; `name` stands for the file in messages.
  static Tokenizer from_json(std::string_view json, const std::string& name);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Turns text into ids. With `add_special_tokens` the post-processor's template is applied.
  /// Throws kInvalidArgument for a text above 256 MiB or one that the file's regex cannot search
  /// within its limits, kBadFile where the text needs an unknown token that the vocabulary lacks,
  /// and kCancelled soon after any thread has raised `cancelled` (not owned; null: none).
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = true,
                              const std::atomic<bool>* cancelled = nullptr) const;
  /// Does the same with a text in which some spellings of special tokens are to stay text: whoever
  /// made it put kTextGuard within each of these, as guard_special_tokens() does. The guards go
  /// once special tokens were looked for, so the rest is read as if they had never been there.
  std::vector<int32_t> encode_guarded(std::string_view text, bool add_special_tokens = true) const;
  /// Returns the text with kTextGuard within each spelling of a special token, and without those
  /// that it had.
  std::string guard_special_tokens(std::string_view text) const;
  /// Returns the text without its guards.
  static std::string without_guards(std::string_view text);
  /// A character that stands for nothing: U+FDD0, which Unicode keeps for such uses.
  static constexpr std::string_view kTextGuard = "\xEF\xB7\x90";
  /// Turns ids into text, as PyPI's `tokenizers` decodes them. Throws kInvalidArgument for an id
  /// out of range.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens = true) const;
  /// Returns the bytes that one id adds to the output (not necessarily whole characters).
  std::string token_bytes(int32_t id) const;
  /// Returns the vocabulary's own spelling of an id ("Ġthe"); empty for an unused id.
  std::string token_text(int32_t id) const;
  /// Returns the id of a vocabulary entry or added token, -1 where there is none.
  int32_t token_id(std::string_view token) const;
  /// Returns true for a special token, which decoding may leave out.
  bool is_special(int32_t id) const;
  /// Returns one more than the largest id.
  int32_t vocab_size() const;

  struct Impl;

 private:
  explicit Tokenizer(std::shared_ptr<const Impl> impl);
  std::vector<int32_t> encode_parts(std::string_view text, bool add_special_tokens, bool is_guarded,
                                    const std::atomic<bool>* cancelled) const;
  std::shared_ptr<const Impl> impl_;
  friend class StreamDecoder;
};

/// Turns ids into text one at a time; never emits part of a character.
///
///     StreamDecoder stream(tokenizer);
///     for (int32_t id : ids) std::fputs(stream.add(id).c_str(), stdout);
///     std::fputs(stream.finish().c_str(), stdout);
///
/// The concatenation equals `tokenizer.decode(ids)`. Not thread-safe; keeps the tokenizer alive.
class VITRINE_API StreamDecoder {
 public:
  /// Begins a text.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special_tokens = true);
  ~StreamDecoder();
  StreamDecoder(StreamDecoder&&) noexcept;
  StreamDecoder& operator=(StreamDecoder&&) noexcept;

  /// Adds an id, and returns the text that became certain with it (may be empty).
  std::string add(int32_t id);
  /// Returns what is left: an unfinished character becomes U+FFFD.
  std::string finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Ends a streamed text where it first ends with one of some strings, wherever tokens begin and
/// end. What may be the beginning of one is held back until that is decided; the string itself is
/// left out. Not thread-safe.
class VITRINE_API StopStrings {
 public:
  /// Throws kInvalidArgument for an empty string.
  explicit StopStrings(std::vector<std::string> strings);

  /// Says whether the text may stop before this byte of the piece at hand.
  using MayBegin = std::function<bool(size_t offset)>;
  /// Adds a piece, and returns the text that became certain with it (may be empty); nothing once
  /// stopped. With `may_begin` a string counts only where it begins at a byte of which that is
  /// true: so a text that has to be whole is cut only where it is.
  std::string add(std::string_view piece, const MayBegin& may_begin = {});
  /// Returns true once the text has ended with one of the strings.
  bool stopped() const { return is_stopped_; }
  /// Returns the string that ended the text; empty where none has.
  const std::string& found() const { return found_; }
  /// Returns what was held back; empty where the text was stopped.
  std::string finish();

 private:
  std::vector<std::string> strings_;
  std::string held_;
  std::string begins_;  // of each byte held: 1 where a string may begin
  bool is_stopped_ = false;
  std::string found_;
};

}  // namespace vitrine
