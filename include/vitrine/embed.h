// SPDX-License-Identifier: Apache-2.0
// The room `engine`: embeddings, one vector a text (or a token), of the last hidden states.
//
//     Model model = Model::open(path, {.engine = embedding_options(512)});
//     std::vector<std::vector<int32_t>> texts = {model.tokenizer().encode("A glass case.")};
//     std::vector<float> vector = embed(model, texts).front();  // [hidden_size], of length 1
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "vitrine/engine.h"

namespace vitrine {

/// What becomes of a text's hidden states, one a token: what the output head would read, after the
/// final norm.
enum class Pooling : uint8_t {
  kNone,  ///< each token keeps its own
  kMean,  ///< their mean, added up in double precision in the order of tokens
  kLast,  ///< the last token's, which has seen all others
  kCls,   ///< the first token's, which has seen itself alone in a model that looks back
};

/// Returns "none", "mean", "last" or "cls".
VITRINE_API std::string_view pooling_name(Pooling pooling);
/// Returns the pooling of that name, or none.
VITRINE_API std::optional<Pooling> find_pooling(std::string_view name);

/// How texts are embedded.
struct EmbedOptions {
  Pooling pooling = Pooling::kMean;  ///< what becomes of a text's hidden states
  /// Each vector is divided by its Euclidean length, so that a product of two is their cosine. A
  /// vector of zeros stays one.
  bool normalize = true;
  /// Which of EngineOptions::adapters the tokens go through; -1: none.
  int adapter = -1;
  std::function<void()> before_step = {};  ///< called before each step; what it throws ends the run
};

/// Returns options for an engine that only embeds: texts of at most `context` tokens, up to
/// `sequences` of them in a step, rows of hidden states for all tokens of a step, no output head
/// and no recorder. Throws kInvalidArgument for numbers below 1.
VITRINE_API EngineOptions embedding_options(int64_t context, EngineOptions options = {},
                                            int sequences = 16);

/// Embeds texts, given as ids. Several share a step, as many as EngineOptions::max_sequences,
/// max_step_tokens and max_logit_rows have room for; no text's numbers depend on the others, on
/// threads or on how it was cut into steps, where ModelSummary::invariant says so. `on_text` gets
/// the number of each text, in order, and its vectors: [hidden_size], with Pooling::kNone
/// [tokens * hidden_size]; valid in the callback. Works on any engine that keeps hidden states
/// (EngineOptions::keep_hidden_state), fastest with embedding_options(). Throws kInvalidArgument
/// for a model that keeps none, a federation, an empty text, one that is longer than the context
/// and an id out of range, all before the first step; kInternal for a hidden state that is not
/// finite; and what Stepper::step throws. Sequences are released, whatever happens.
VITRINE_API void embed(
    Stepper& model, std::span<const std::vector<int32_t>> texts, const EmbedOptions& options,
    const std::function<void(size_t text, std::span<const float> vectors)>& on_text);
/// Embeds texts and returns the vectors of all of them at once, in order.
VITRINE_API std::vector<std::vector<float>> embed(Stepper& model,
                                                  std::span<const std::vector<int32_t>> texts,
                                                  const EmbedOptions& options = {});

}  // namespace vitrine
