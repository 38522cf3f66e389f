// SPDX-License-Identifier: Apache-2.0
// The room `quality`: how well a model predicts given tokens, and how far another model is from it.
//
//     auto engine = Engine::load(model, scoring_options(512));
//     const TextScore score = score_text(*engine, ids, {.window = 512});
//     use(score.perplexity());
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "vitrine/engine.h"
#include "vitrine/federation_engine.h"
#include "vitrine/statistics.h"

namespace vitrine {

/// Returns `options` for a model that is to be measured on windows of `window` positions: contexts
/// of that size, up to `rows` tokens in one step with the logits of each (which bounds a step's
/// memory), no records. Throws kInvalidArgument for either below 1, or above what an engine takes.
VITRINE_API EngineOptions scoring_options(int64_t window, EngineOptions options = {},
                                          int rows = 32);

// ---- What a model says of given tokens ---------------------------------------------------------

/// Returns log p(token), nats, under the softmax of `logits` [vocabulary], in float64. Throws
/// kInvalidArgument for a token that has no logit.
VITRINE_API double logprob_of(std::span<const float> logits, int32_t token);
/// Writes log p of each token, nats, in float64. `logprobs` has as many elements, else
/// kInvalidArgument.
VITRINE_API void log_softmax(std::span<const float> logits, std::span<double> logprobs);
/// Returns KL(p || q) = sum of p (log p - log q), nats, of two distributions by their
/// log-probabilities (Kullback and Leibler 1951). Throws kInvalidArgument where one has more than
/// the other.
VITRINE_API double kl_divergence(std::span<const double> p_logprobs,
                                 std::span<const double> q_logprobs);

/// What score_tokens() is given.
struct TokenScoreOptions {
  size_t first = 1;  ///< the first id that is scored, at least 1; those before it are context
  int greedy = 0;  ///< how many ids are chosen greedily, one after the other, behind the given ones
  std::function<void()> before_step = {};  ///< called before each step; what it throws ends the run
};

/// What a model says of given ids.
struct TokenScores {
  std::vector<double> logprobs;    ///< [ids - first] nats: each id's, given those before it
  std::vector<float> last_logits;  ///< [vocabulary] behind the last id; for a federation the
                                   ///< joint's log-probabilities
  std::vector<int32_t> greedy;     ///< [TokenScoreOptions::greedy]
};

/// Scores ids in one sequence, which is released. Throws kInvalidArgument for no ids, an id out of
/// range, `first` that is 0 or beyond the ids, more positions than the context has, and a model
/// without logits of each token; kInternal where an engine's logit is not finite.
VITRINE_API TokenScores score_tokens(Stepper& model, std::span<const int32_t> ids,
                                     const TokenScoreOptions& options = {});

/// What a model says of several continuations of one context.
struct ContinuationScores {
  /// [continuations][its ids] nats: each id's, given those before it.
  std::vector<std::vector<double>> logprobs;
  /// [continuations] whether each of its ids is the most probable one there, among equals the one
  /// that the model would choose.
  std::vector<uint8_t> is_greedy;
};

/// Scores continuations of one context, which is computed once: each has a fork of its sequence,
/// and several go through one step. All are released. A model computes the same bits for one
/// alone. `before_step` is called before each step; what it throws ends the run. Throws
/// kInvalidArgument for an empty context or continuation, an id out of range, more positions than
/// the context has, and a model without logits of each token.
VITRINE_API ContinuationScores
score_continuations(Stepper& model, std::span<const int32_t> context,
                    std::span<const std::vector<int32_t>> continuations,
                    const std::function<void()>& before_step = {});

// ---- Texts -------------------------------------------------------------------------------------

/// How a text is read: in windows that do not overlap, each of which begins anew. The first id of a
/// window is not predicted, and an id that is alone in the last window counts for nothing.
struct WindowOptions {
  int64_t window = 1024;                   ///< ids, at least 2; a context must hold them
  size_t first_window = 0;                 ///< the number of the text's first window
  size_t every = 1;                        ///< windows are read whose number is a multiple of it
  std::function<void()> before_step = {};  ///< called before each step; what it throws ends the run
};

/// A token of a text, as a model predicted it. Spans are valid in the callback.
struct PredictedToken {
  size_t window = 0;                    ///< the window's number
  int64_t position = 0;                 ///< of the token in its window, from 1
  int32_t token = 0;                    ///< its id
  double logprob = 0;                   ///< nats
  double log_total = 0;                 ///< the log-probability of any id is its logit less this
  std::span<const float> logits;        ///< [vocabulary], as StepOutput has them
  std::span<const float> hidden_state;  ///< where EngineOptions::keep_hidden_state asks for it
  std::span<const SpecialistShare> shares;  ///< [specialists] of a federation
};

/// Calls `on_token` with each token that is predicted, in order, and returns how many windows the
/// text has, those that are left out too. Throws kInvalidArgument for fewer than two ids, an id out
/// of range, options out of range, and a model without logits of each token; kInternal where an
/// engine's logit is not finite (what a federation says is passed on as it is).
VITRINE_API size_t predict_windows(Stepper& model, std::span<const int32_t> ids,
                                   const WindowOptions& options,
                                   const std::function<void(const PredictedToken&)>& on_token);

/// How well a model predicts texts, added up token by token.
class VITRINE_API TextScore {
 public:
  /// Adds a token. Throws kInvalidArgument where it has another number of specialists.
  void add(const PredictedToken& token);
  /// Returns how many tokens were added; before the first, the means below are NaN.
  size_t num_tokens() const { return num_tokens_; }
  /// Returns the mean log-probability, nats.
  double logprob() const;
  /// Returns exp(-logprob()): the perplexity.
  double perplexity() const;
  /// Returns how many specialists a federation has; 0 for an engine.
  size_t num_specialists() const { return specialists_.size(); }
  /// Returns the perplexity of one specialist alone.
  double perplexity(size_t specialist) const;
  /// Returns the mean of a specialist's shares (SpecialistShare::share).
  double share(size_t specialist) const;

 private:
  struct Specialist {
    double logprob = 0, share = 0;
  };
  size_t num_tokens_ = 0;
  double logprob_ = 0;
  std::vector<Specialist> specialists_;
};

/// Runs predict_windows() and adds up its tokens.
VITRINE_API TextScore score_text(Stepper& model, std::span<const int32_t> ids,
                                 const WindowOptions& options = {});

// ---- Two models ------------------------------------------------------------------------------

/// One token as two models predicted it.
struct ComparedToken {
  size_t window = 0;          ///< the window's number
  double first_logprob = 0;   ///< nats
  double second_logprob = 0;  ///< nats
  double kl = 0;              ///< KL(first || second), nats
  bool is_same_best = false;  ///< both have the same most probable id, among equals the lower one
};

/// Two models on one text.
struct VITRINE_API ModelComparison {
  std::vector<ComparedToken> tokens;  ///< in order
  double first_perplexity = 0;   ///< the first model's: exp of the mean negative log-probability
  double second_perplexity = 0;  ///< the second model's
  double mean_kl = 0;            ///< KL(first || second), nats a token

  /// Returns the second's log-probability less the first's, nats a token; windows are clusters.
  Estimate logprob_change() const;
  /// Returns the mean of KL(first || second), nats a token.
  Estimate kl() const;
  /// Returns a quantile of KL(first || second) over tokens.
  double kl_quantile(double fraction) const;
  /// Returns the share of tokens with ComparedToken::is_same_best.
  Estimate agreement() const;
};

/// Runs both models over a text side by side. Throws what predict_windows() throws, and
/// kInvalidArgument for vocabularies that differ and for one model given twice.
VITRINE_API ModelComparison compare_models(Stepper& first, Stepper& second,
                                           std::span<const int32_t> ids,
                                           const WindowOptions& options = {});

}  // namespace vitrine
