// SPDX-License-Identifier: Apache-2.0
// The room `core`: the interface of what guesses the next tokens of a text (speculate.h has
// Vitrine's own).
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>

#include "vitrine/core.h"

namespace vitrine {

/// Names a text that a drafter follows; none is 0.
using DraftTextId = uint64_t;

/// Tells a drafter of a text before its first token.
struct DraftText {
  /// A drafter may use what it learns from a text for other texts of the same scope, and for no
  /// others. Empty: it may use it for none.
  std::string scope = {};
  int64_t prompt_tokens = 0;  ///< how many of its tokens are given; what follows is the answer
  /// The most that it will ever have, so that all memory can be taken at the start.
  int64_t max_tokens = 0;
  /// The sequence that holds its positions, by the stepper's name for it; 0: not known. Between two
  /// passes it holds all of them but the last.
  uint64_t sequence = 0;
  /// The answer's flag (GenerateOptions::cancelled), for a drafter that runs a model: its steps end
  /// with the answer (StepInput::cancelled). A kCancelled that the drafter throws then does not
  /// count as a problem of its own.
  const std::atomic<bool>* cancelled = nullptr;
  /// Bytes of keys and values that the drafter may hold, all texts together
  /// (EngineOptions::draft_kv_bytes): start() throws kOutOfMemory where the text takes more.
  uint64_t kv_bytes = std::numeric_limits<uint64_t>::max();
};

/// One text's part of Drafter::propose.
struct DraftProposal {
  DraftTextId text = 0;            ///< which
  std::span<int32_t> tokens = {};  ///< where guesses go: the first one stands right behind the
                                   ///< last committed token, each further one behind it
  int32_t count = 0;               ///< set by the drafter: so many were guessed, 0 where none
  /// [tokens] set by a drafter that guesses trees: the index of the guess behind which each one
  /// stands, below its own index; -1: it stands behind the last committed token. Guesses behind the
  /// same token differ. As they are given, the numbers say a chain. Empty: only a chain is asked
  /// for, as in a federation, or for a model that keeps states in place of keys and values.
  std::span<int32_t> parents = {};
  int32_t max_depth = 0;  ///< guesses on a path of a tree at most; further ones are left out
  /// Set by a drafter that checks its guesses itself: how many of them it replaced by others.
  int32_t replaced = 0;
};

/// States what a drafter holds in memory.
struct DraftMemory {
  uint64_t weight_bytes = 0;  ///< of its weights
  uint64_t kv_bytes = 0;      ///< of its keys and values, as they are reserved
  uint64_t index_bytes = 0;   ///< of texts and of tables to look up what stands in them
};

/// Guesses what comes next in texts, for a model to check: a pass over several tokens of a text
/// costs little more than a pass over one token. Whatever it guesses, the answer is the one that
/// the model makes without it; a good guess only makes it sooner.
///
/// It follows any number of texts, each by its tokens alone, and is used by one thread at a time.
/// What it throws ends speculation in the answer that it was asked for, which goes on without and
/// says so (SpeculationCounts::problem); so do ids that the model does not have and more tokens
/// than there is room for.
class VITRINE_API Drafter {
 public:
  virtual ~Drafter() = default;
  /// Returns its name as the command line and messages know it ("suffix").
  virtual std::string_view name() const = 0;
  /// Begins to follow a text, which is empty.
  virtual DraftTextId start(const DraftText& text) = 0;
  /// Begins to follow a second text, which has all that this one has so far.
  virtual DraftTextId fork(DraftTextId text) = 0;
  /// Adds tokens to the text: its prompt, whole or in chunks, then each token that was chosen or
  /// forced, whoever guessed it.
  virtual void commit(DraftTextId text, std::span<const int32_t> tokens) = 0;
  /// Forgets everything from the text's token `length` on: another attempt begins.
  virtual void truncate(DraftTextId text, int64_t length) = 0;
  /// Guesses for all texts of a step together. May be asked again for a text that did not go on.
  virtual void propose(std::span<DraftProposal> proposals) = 0;
  /// Returns, ascending, the layers for which it wants to be shown the residual stream that enters
  /// them; the number of layers stands for what leaves the last one. EngineOptions::feature_layers
  /// must be the same, or nothing is shown.
  virtual std::span<const int> feature_layers() const { return {}; }
  /// Shows it what the model computed at positions of the text from `first` on: `rows` is
  /// [positions, feature_layers * hidden_size]. Positions come in order, and a position comes at
  /// the latest before guesses are asked for behind the token that follows it. Where another
  /// attempt begins, `first` goes back. What a sequence held before the prompt is not shown.
  virtual void observe(DraftTextId /*text*/, int64_t /*first*/, std::span<const float> /*rows*/) {}
  /// Tells it, after a pass and before what that chose is committed, that the model checked
  /// `proposed` guesses, of which `accepted` were right, one behind another.
  virtual void told(DraftTextId /*text*/, int32_t /*proposed*/, int32_t /*accepted*/) {}
  /// Returns what it holds now, all texts together.
  virtual DraftMemory memory() const { return {}; }
  /// Returns the bytes of keys and values that start() takes for a text of so many tokens; 0 where
  /// it takes none.
  virtual uint64_t text_kv_bytes(int64_t /*max_tokens*/) const { return 0; }
  /// Forgets the text. `is_whole`: its answer ended by itself or at a limit, and may serve others
  /// of its scope.
  virtual void release(DraftTextId text, bool is_whole) = 0;
};

}  // namespace vitrine
