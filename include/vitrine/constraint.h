// SPDX-License-Identifier: Apache-2.0
// The room `core`: the interface of what says which token may come next (constrain.h has
// Vitrine's own).
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/core.h"

namespace vitrine {

/// What a constraint did to one choice.
struct ConstraintDecision {
  int32_t allowed = 0;  ///< tokens that it allowed; 0: no mask was at work
  float removed = 0;    ///< probability, before any sampler stage, of the tokens that it ruled out
  float mask_microseconds = 0;  ///< the time that it took to say which
  /// True where the token limit ruled out a token that the constraint allows and behind which an
  /// end of the answer is known. A token behind which no end is known is ruled out at any limit,
  /// and does not count here.
  bool is_limited = false;
  bool first_ruled_out = false;  ///< the model's first choice was not among the allowed tokens
  int32_t attempt = 0;           ///< above 0: which attempt without a mask, after a deadlock
  /// Returns true where no choice was left.
  bool is_forced() const { return allowed == 1; }
  /// Returns true where a constraint took part.
  bool is_given() const { return allowed > 0 || attempt > 0; }
};

/// Where a constraint stands, in words. It holds nothing of the answer's own text but keys that the
/// schema names. What may follow tells what came before, though, where that rules something out
/// (uniqueItems, keys that are there already).
struct ConstraintState {
  int64_t num_bytes = 0;  ///< of the answer so far
  /// The readings of the answer so far that are open, the first eight: the place in the schema or
  /// in the grammar, and what is left there.
  std::vector<std::string> readings;
  int64_t num_readings = 0;  ///< also those that `readings` leaves out
  std::string next_bytes;    ///< the bytes that may follow, as "'a'-'z' '\"'"
  /// A text that finishes the answer from here: its first 256 bytes, with what is no printable
  /// ASCII as \\xNN. Empty where none is known or the answer is whole.
  std::string completion;
};

/// An answer that could not be had under a constraint, or could not stand.
struct ConstraintFailure {
  /// What went wrong.
  enum class Kind : uint8_t {
    kDeadlock,    ///< no token was left to choose from
    kRefused,     ///< an attempt without a mask came to `token`, which the constraint refuses
    kUnfinished,  ///< the answer ended before it was whole: by the limit, or the context
    kRejected,    ///< the host's validator refused a whole answer
    kError,       ///< the constraint threw `message`: it needs too much work or memory, say
  };
  Kind kind = Kind::kDeadlock;  ///< what went wrong
  int32_t attempt = 0;          ///< as ConstraintDecision::attempt
  uint64_t sequence = 0;        ///< the engine's id of it
  int64_t position = 0;         ///< of the token that was refused, or that would have come next
  int32_t token = -1;           ///< kRefused
  int32_t allowed = 0;          ///< kDeadlock: tokens that the constraint allowed
  /// The allowed tokens that are within the token limit, for kDeadlock; all of them are banned.
  int32_t in_time = 0;
  std::string message = {};    ///< kError: what was thrown
  ConstraintState state = {};  ///< where the constraint stood
};
/// Returns "deadlock", "refused", "unfinished", "rejected" or "error".
VITRINE_API std::string_view constraint_failure_name(ConstraintFailure::Kind kind);

/// Says which token may come next: a grammar, a schema, a host's own rule.
///
/// A constraint follows one sequence. accept() moves it one token on, rollback() any number of
/// tokens back. Not thread-safe; fork() gives another thread its own.
class VITRINE_API Constraint {
 public:
  /// Says that no bound is known.
  static constexpr uint32_t kNoTokenBound = std::numeric_limits<uint32_t>::max();
  virtual ~Constraint() = default;
  /// Returns the number of ids that a mask covers; one 32-bit word covers 32.
  virtual int32_t vocab_size() const = 0;
  /// Sets bit (id % 32) of word (id / 32) for each token that may come next and clears all others.
  /// `mask`: [ceil(vocab_size / 32)] words, else kInvalidArgument. Ids that end the sequence are
  /// allowed exactly where is_complete(). False where no token is allowed: a deadlock.
  virtual bool allowed_tokens(std::span<uint32_t> mask) = 0;
  /// Moves on by one token. Returns false, and nothing has changed, where that token is not
  /// allowed.
  virtual bool accept(int32_t token) = 0;
  /// Takes back the last `count` accepted tokens. Throws kInvalidArgument where there are fewer.
  virtual void rollback(int32_t count) = 0;
  /// Returns true where the text so far is a whole answer.
  virtual bool is_complete() const = 0;
  /// Returns the bytes that must come next whatever the model prefers; empty where there is a
  /// choice or the answer could end here.
  virtual std::string forced_bytes() = 0;
  /// Returns the bytes that jump-forward writes (GenerateOptions::jump_forward): as forced_bytes(),
  /// except that a character of a JSON string counts as forced by itself, though it could be spelt
  /// as an escape, too.
  virtual std::string forced_text() { return forced_bytes(); }
  /// Returns how many tokens finish the answer from here by some completion that is known; the
  /// token that ends the sequence does not count. For an answer that has not begun and is too long
  /// to be written out, returns how many tokens it needs at least. kNoTokenBound where neither is
  /// known.
  virtual uint32_t tokens_to_finish() { return kNoTokenBound; }
  /// Returns true for a constraint that looks for such a completion, in tokens that it allows.
  /// Where it knows none and tokens are banned, a request is refused before it starts.
  virtual bool looks_for_an_end() const { return false; }
  /// Takes out of a mask that allowed_tokens() has filled at this place every token behind which
  /// the answer is not known to be finished within `limit` tokens, the token itself counted.
  /// Returns false where none is left. This default tries each token.
  virtual bool keep_within(std::span<uint32_t> mask, uint32_t limit);
  /// Returns where it stands, for people who read of failures and of refused texts (vitrine
  /// constrain check). It is not for the hot path. Where it throws, nothing counts as known.
  virtual ConstraintState state() { return {}; }
  /// Returns an independent copy that stands at the same place and can be rolled back as far.
  virtual std::unique_ptr<Constraint> fork() const = 0;
};

}  // namespace vitrine
