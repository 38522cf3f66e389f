// SPDX-License-Identifier: Apache-2.0
// The room `quality`: perplexity and divergence as llama.cpp's llama-perplexity takes them, and its
// file of log-probabilities.
//
//     const std::vector<int32_t> ids = ...;
//     auto engine = Engine::load(model, scoring_options(512, {}, 256));
//     TokenLosses losses;
//     score_chunks(*engine, ids, {}, [&](const ChunkToken& token) { losses.add(token.logprob); });
//     use(losses.perplexity());
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vitrine/quality.h"

namespace vitrine {

/// How a text is cut into chunks that do not overlap, each of which begins anew. What is left at
/// the text's end is no chunk.
struct ChunkOptions {
  int64_t context = 512;     ///< ids of a chunk, at least 4; a model's context must hold them
  int64_t most_chunks = 0;   ///< the first so many; 0: all
  int32_t begin_token = -1;  ///< stands in the place of each chunk's first id; -1: the id stays
  /// Every id of a chunk but its first is scored; else those behind its middle, which have at
  /// least context / 2 + 1 ids before them.
  bool scores_all = false;
  std::function<void()> before_step = {};  ///< called before each step; what it throws ends the run
};

/// Returns how many chunks a text has. Throws kInvalidArgument for options out of range, and for a
/// text without a whole chunk.
VITRINE_API size_t count_chunks(size_t num_ids, const ChunkOptions& options);
/// Returns the position in its chunk of the first id that is scored.
VITRINE_API size_t first_scored(const ChunkOptions& options);

/// An id of a chunk, as a model predicted it. Its span is valid in the callback.
struct ChunkToken {
  size_t chunk = 0;               ///< from 0
  int64_t position = 0;           ///< of the id in its chunk
  int32_t token = 0;              ///< the id
  double logprob = 0;             ///< nats
  std::span<const float> logits;  ///< [vocabulary], as StepOutput has them
};

/// Calls `on_token` with each id that is scored, in order. Throws kInvalidArgument as
/// count_chunks() does, for ids out of range and a model without logits of each token; kBadFile
/// where a logit is not finite.
VITRINE_API void score_chunks(Stepper& model, std::span<const int32_t> ids,
                              const ChunkOptions& options,
                              const std::function<void(const ChunkToken&)>& on_token);

/// Sums of negative log-probabilities.
class VITRINE_API TokenLosses {
 public:
  /// Adds a token's log-probability, nats.
  void add(double logprob);
  /// Returns how many were added; before the first the numbers below are NaN.
  size_t num_tokens() const { return num_tokens_; }
  /// Returns exp of the mean, and what a standard error of the mean makes of it: tokens count as
  /// independent, as llama-perplexity counts them.
  Estimate perplexity() const;

 private:
  size_t num_tokens_ = 0;
  double sum_ = 0, squares_ = 0;
};

// ---- llama.cpp's file of log-probabilities -----------------------------------------------------

/// What such a file begins with. All numbers of the file are little-endian: "_logits_", int32 ids
/// of a chunk, int32 size of the vocabulary, int32 number of chunks, int32 ids, and for each scored
/// id float32 s and m and a uint16 u for each token (one more where their number is odd): log p = s
/// u + m, with logits of 16 and more below the largest one as if they were 16 below.
struct LogprobFileHead {
  int64_t context = 0;            ///< ids of a chunk
  int64_t vocab_size = 0;         ///< tokens of a row
  int64_t chunks = 0;             ///< that it has
  std::vector<int32_t> ids = {};  ///< [chunks][context]
};

/// Writes one, row by row, as `llama-perplexity --kl-divergence-base FILE` does. The file gets its
/// name when it is whole.
class VITRINE_API LogprobFileWriter {
 public:
  /// Throws kIo, and kInvalidArgument where the ids are not as many as the chunks' and contexts'
  /// product, or a number does not fit.
  LogprobFileWriter(const std::string& path, const LogprobFileHead& head);
  /// Removes what was written where finish() was not called.
  ~LogprobFileWriter();
  LogprobFileWriter(const LogprobFileWriter&) = delete;
  LogprobFileWriter& operator=(const LogprobFileWriter&) = delete;
  /// Adds the next scored id's row. Throws kIo; kInvalidArgument for another number of logits, and
  /// for more rows than the chunks have.
  void add(std::span<const float> logits);
  /// Ends the file. Throws kIo, and kInvalidArgument where rows are missing.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Reads one, Vitrine's or llama-perplexity's.
class VITRINE_API LogprobFileReader {
 public:
  /// Throws kIo, and kBadFile (naming the file, the field, what was found and expected) for what is
  /// no such file, and for one whose size is not what its head promises.
  explicit LogprobFileReader(const std::string& path);
  ~LogprobFileReader();
  LogprobFileReader(const LogprobFileReader&) = delete;
  LogprobFileReader& operator=(const LogprobFileReader&) = delete;
  /// Returns what it begins with.
  const LogprobFileHead& head() const;
  /// Reads the next scored id's log-probabilities, nats. `logprobs`: [vocabulary]. Throws kIo;
  /// kBadFile for numbers that are not finite; kInvalidArgument behind the last one.
  void next(std::span<float> logprobs);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// ---- How far a model is from another one -------------------------------------------------------

/// A token as a model and its base predicted it.
struct DivergedToken {
  double logprob = 0;         ///< the model's, nats
  double base_logprob = 0;    ///< the base's, nats
  double kl = 0;              ///< KL(base || model), nats
  bool is_same_best = false;  ///< both have the same most probable token, among equals the lower id
};

/// Compares a row of logits with the base's log-probabilities. As in llama-perplexity, tokens whose
/// base log-probability is -16 or less count for nothing in `kl`. Throws kInvalidArgument for rows
/// of two lengths and a token that they lack.
VITRINE_API DivergedToken compare_with_base(std::span<const float> logits,
                                            std::span<const float> base_logprobs, int32_t token);

/// What llama-perplexity's `--kl-divergence` reports. Standard errors take tokens for independent,
/// as it takes them; clustered_mean() does not.
struct VITRINE_API DivergenceReport {
  size_t num_tokens = 0;              ///< that were compared
  Estimate perplexity = {};           ///< the model's
  Estimate base_perplexity = {};      ///< the base's
  double correlation = 0;             ///< of both log-probabilities over tokens, -1 to 1
  Estimate log_ratio = {};            ///< ln(perplexity / base_perplexity)
  Estimate ratio = {};                ///< perplexity / base_perplexity
  Estimate difference = {};           ///< perplexity - base_perplexity
  Estimate kl = {};                   ///< KL(base || model), nats a token
  Estimate delta_p = {};              ///< probability of the right token less the base's
  Estimate rms_delta_p = {};          ///< root of the mean square of that
  Estimate same_best = {};            ///< share of tokens with DivergedToken::is_same_best
  std::vector<double> kls = {};       ///< [num_tokens] ascending
  std::vector<double> delta_ps = {};  ///< [num_tokens] ascending
};
/// Throws kInvalidArgument for fewer than two tokens.
VITRINE_API DivergenceReport divergence_report(std::span<const DivergedToken> tokens);

}  // namespace vitrine
