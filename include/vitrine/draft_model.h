// SPDX-License-Identifier: Apache-2.0
// The room `engine`: a smaller model that guesses for a larger one.
#pragma once

#include <cstdint>
#include <memory>

#include "vitrine/drafter.h"
#include "vitrine/model.h"

namespace vitrine {

/// How two vocabularies go together.
struct VocabularyOverlap {
  bool is_same = false;      ///< every id that both have is the same token
  int64_t draft_tokens = 0;  ///< tokens of the draft model's vocabulary
  int64_t common = 0;        ///< of these, tokens that the target has, too, under whatever id
  /// Returns the share of common tokens; 0 where there is none.
  double share() const {
    return draft_tokens > 0 ? static_cast<double>(common) / static_cast<double>(draft_tokens) : 0;
  }
};
/// Compares the spelling of all tokens.
VITRINE_API VocabularyOverlap compare_vocabularies(const Tokenizer& draft, const Tokenizer& target);

/// A drafter that is a model: it guesses what `draft` chooses greedily, all texts of a step in the
/// same passes. Where the vocabularies differ, what it is shown is spelt by its own tokenizer, and
/// what it chooses by that of the target. It follows as many texts as `draft` may have sequences
/// (EngineOptions::max_sequences), each up to its context. `target` must stay as long as the
/// drafter. Throws kInvalidArgument where the vocabularies have no token in common.
VITRINE_API std::unique_ptr<Drafter> make_draft_model(Model draft, const Tokenizer& target);

}  // namespace vitrine
