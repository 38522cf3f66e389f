// SPDX-License-Identifier: Apache-2.0
// The room `sample`: from logits to one token id.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vitrine/core.h"
#include "vitrine/sampler_stage.h"

namespace vitrine {

/// Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC11): a
/// counter-based generator, so that a draw depends on nothing but its coordinates.
///
/// Key: the seed. Counter: {position (low 32 bits), stage id, branch, draw}; the position's high
/// bits are added to the draw's word shifted by 16.
VITRINE_API std::array<uint32_t, 4> philox4x32(uint64_t key,
                                               const std::array<uint32_t, 4>& counter);

/// A uniform number in [0, 1) with 53 random bits for one draw of one stage.
VITRINE_API double philox_uniform(const SampleContext& context, uint32_t stage_id, uint32_t draw);

/// Stable stage numbers: part of what a seed means, so they never change and are never reused.
inline constexpr uint32_t kTemperatureStageId = 1;          ///< make_temperature_stage()
inline constexpr uint32_t kTopKStageId = 2;                 ///< make_top_k_stage()
inline constexpr uint32_t kTopPStageId = 3;                 ///< make_top_p_stage()
inline constexpr uint32_t kMinPStageId = 4;                 ///< make_min_p_stage()
inline constexpr uint32_t kDrawStageId = 5;                 ///< make_draw_stage()
inline constexpr uint32_t kGreedyStageId = 6;               ///< make_greedy_stage()
inline constexpr uint32_t kConstraintStageId = 7;           ///< make_constraint_stage()
inline constexpr uint32_t kLogitBiasStageId = 8;            ///< make_logit_bias_stage()
inline constexpr uint32_t kBanStageId = 9;                  ///< make_ban_stage()
inline constexpr uint32_t kPenaltiesStageId = 10;           ///< make_penalties_stage()
inline constexpr uint32_t kDryStageId = 11;                 ///< make_dry_stage()
inline constexpr uint32_t kDynamicTemperatureStageId = 12;  ///< make_dynamic_temperature_stage()
inline constexpr uint32_t kTopNSigmaStageId = 13;           ///< make_top_n_sigma_stage()
inline constexpr uint32_t kTypicalPStageId = 14;            ///< make_typical_p_stage()
inline constexpr uint32_t kXtcStageId = 15;                 ///< make_xtc_stage()
inline constexpr uint32_t kMirostatStageId = 16;            ///< make_mirostat_stage()
/// The first number that a host's own stage may use.
inline constexpr uint32_t kFirstHostStageId = 1000;

/// Every option; the value that switches a stage off stands beside it. docs/sampling.md explains
/// each, and each factory below says what its stage does.
struct SamplerOptions {
  float temperature = 1.0f;                   ///< 0: greedy
  int32_t top_k = 0;                          ///< 0: off
  float top_p = 1.0f;                         ///< 1: off
  float min_p = 0.0f;                         ///< 0: off
  uint64_t seed = 0;                          ///< of every random number
  float typical_p = 1.0f;                     ///< 1: off
  float top_n_sigma = 0.0f;                   ///< 0: off
  float xtc_probability = 0.0f;               ///< 0: off
  float xtc_threshold = 0.1f;                 ///< above 0.5 it takes nothing out
  float dynamic_temperature = 0.0f;           ///< range around `temperature`; 0: off
  float dynamic_temperature_exponent = 1.0f;  ///< above 0
  int32_t mirostat = 0;                       ///< 0: off; 2
  float mirostat_tau = 5.0f;                  ///< bits
  float mirostat_eta = 0.1f;                  ///< how fast the surprise is corrected
  float repetition_penalty = 1.0f;            ///< 1: off
  float frequency_penalty = 0.0f;             ///< 0: off
  float presence_penalty = 0.0f;              ///< 0: off
  int32_t penalty_window = 0;                 ///< tokens; 0: the whole sequence
  std::vector<int32_t> penalty_exempt = {};   ///< ids that neither penalties nor DRY change
  float dry_multiplier = 0.0f;                ///< 0: off
  float dry_base = 1.75f;                     ///< 1 or more
  int32_t dry_allowed_length = 2;             ///< 1 or more
  int32_t dry_penalty_last_n = -1;            ///< tokens; -1: all, 0: off
  std::vector<std::vector<int32_t>> dry_sequence_breakers = {};  ///< sequences of ids
  std::vector<std::pair<int32_t, float>> logit_bias = {};        ///< id, what is added
  std::vector<std::vector<int32_t>> ban = {};                    ///< ids and sequences of ids
  /// Names of stages in the order in which they run; those that are not named don't. Empty:
  /// default_sampler_order(). "constraint" stands first where it is not named.
  std::vector<std::string> samplers = {};
};

/// One option as a command line (with dashes) and a log name it.
struct SamplerOptionInfo {
  std::string_view name;   ///< that of SamplerOptions' field
  std::string_view stage;  ///< whose it is, as an order names it
  std::string_view help;   ///< one line for people
  bool is_list = false;    ///< may be given repeatedly
};
/// Returns all options but seed and samplers. This and the functions below are thread-safe.
VITRINE_API const std::vector<SamplerOptionInfo>& sampler_option_list();
/// Returns the ids that never come, whatever came before: those that `ban` names alone, and those
/// with a bias of -infinity. Ascending.
VITRINE_API std::vector<int32_t> banned_ids(const SamplerOptions& options);

/// Sets an option from text; adds to one that is a list ("5,7" to penalty_exempt; "7,8;9" to ban
/// and dry_sequence_breakers: sequences; "5=-1.5;9=-inf" to logit_bias). Also "samplers" and
/// "seed". Throws kInvalidArgument for an unknown name and a text that is no value of it.
VITRINE_API void set_sampler_option(SamplerOptions& options, std::string_view name,
                                    std::string_view value);
/// Returns an option's value as set_sampler_option() reads it; empty for an empty list. Throws
/// kInvalidArgument for an unknown name.
VITRINE_API std::string sampler_option_text(const SamplerOptions& options, std::string_view name);
/// Returns name and text of the options that a log's head keeps: "samplers"; temperature, top_k,
/// top_p and min_p; the options of every other stage that is on; and those that are not what they
/// are by default. set_sampler_option() makes the same pipeline of them.
VITRINE_API std::vector<std::pair<std::string, std::string>> sampler_option_values(
    const SamplerOptions& options);
/// Returns logit_bias, ban, penalties, dry, constraint, temperature, top_n_sigma, top_k, typical_p,
/// top_p, min_p, xtc; with mirostat on the list ends before top_n_sigma, as llama.cpp's does.
VITRINE_API std::vector<std::string> default_sampler_order(const SamplerOptions& options);
/// Throws kInvalidArgument (one line) for what from_options() refuses and for a token id that is no
/// id of the vocabulary.
VITRINE_API void check_sampler_options(const SamplerOptions& options, int64_t vocab_size);

/// An ordered list of stages that ends with a selection.
///
///     auto pipeline = SamplerPipeline::from_options({.temperature = 0.8f, .top_p = 0.95f});
///     int32_t id = pipeline.sample(logits, {.seed = 7, .position = 12});
///
/// It is not thread-safe: one pipeline a sequence. Buffers are allocated for the first vocabulary
/// seen.
class VITRINE_API SamplerPipeline {
 public:
  SamplerPipeline();
  SamplerPipeline(SamplerPipeline&&) noexcept;
  SamplerPipeline& operator=(SamplerPipeline&&) noexcept;
  ~SamplerPipeline();

  /// Makes a pipeline of the stages of `options.samplers` that are on, then the selection: greedy
  /// where temperature is 0 (which leaves out what only shapes a draw, from temperature on),
  /// mirostat where it is on, else the draw. Throws kInvalidArgument for a value out of range
  /// (names option and range, also where it is switched off), a stage that is unknown or named
  /// twice, and a constraint behind a stage that narrows the choice.
  static SamplerPipeline from_options(const SamplerOptions& options);

  /// Appends a stage.
  void add(std::unique_ptr<SamplerStage> stage);
  /// Returns the stages in their order.
  const std::vector<std::unique_ptr<SamplerStage>>& stages() const;
  /// Returns the same stages in the same state (mirostat's, forced positions), for a fork of the
  /// sequence. Throws kUnsupported for a host's stage that has no fork().
  SamplerPipeline fork() const;
  /// Returns true where the output head's epilogue already knows the answer: greedy alone, or
  /// behind the mask of a constraint that never set one.
  bool is_device_greedy() const;
  /// Sets a constraint's mask for the next sample() alone (SampleContext::allowed_tokens). It is
  /// not copied and has to live until then. `is_forced`: the constraint leaves no choice, so
  /// penalties stay away from this step, and never count the token that it takes. Throws
  /// kInvalidArgument for an empty mask and for a pipeline without a constraint stage.
  void set_allowed_tokens(std::span<const uint32_t> mask, bool is_forced = false);
  /// Tells that positions [first, first + count) take tokens that a constraint forced without a
  /// sample() (a jump forward): penalties don't count them. What was marked from `first` on is
  /// forgotten, as sample() forgets what was marked from its position on, so that a rollback needs
  /// no call.
  void mark_forced(int64_t first, int64_t count);
  /// Runs the stages on a copy of `logits` [vocabulary]. A logit of -infinity rules its token out.
  /// Throws kInvalidArgument (names the position) for a logit that is NaN or +infinity, where every
  /// logit is -infinity, and for a pipeline that selects nothing or an id outside the vocabulary.
  int32_t sample(std::span<const float> logits, const SampleContext& context);
  /// Returns true where every stage can run where the logits are: all but mirostat, whose state
  /// hangs on the choice, and a host's own stages.
  bool has_device_form() const;
  /// Returns how the last sample() was decided.
  const SampleDecision& decision() const;

 private:
  friend struct DeviceForm;  // src/sample/device_steps.h
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The stages. All are deterministic: among equal logits the lower id counts as the more probable.
// A stage that narrows keeps the candidates' order and drops those of probability zero; where it
// needs probabilities it takes the softmax of what is left. State goes by position: a sample() at a
// position forgets what was learnt there and later, so that a rollback needs no call. Factories
// throw kInvalidArgument for a parameter out of range.

/// Adds a bias (finite, or -infinity) to the logits of some ids (OpenAI's logit_bias).
VITRINE_API std::unique_ptr<SamplerStage> make_logit_bias_stage(
    std::vector<std::pair<int32_t, float>> biases);
/// Rules out each last id of a sequence whose other ids are the last of the history; of sequences
/// of one id always (transformers' NoBadWordsLogitsProcessor).
VITRINE_API std::unique_ptr<SamplerStage> make_ban_stage(std::vector<std::vector<int32_t>> banned);
/// What make_penalties_stage() is given.
struct PenaltyOptions {
  float repetition = 1.0f;           ///< above 0; 1: off
  float frequency = 0.0f;            ///< 0: off
  float presence = 0.0f;             ///< 0: off
  int32_t window = 0;                ///< last tokens of the history; 0: all
  std::vector<int32_t> exempt = {};  ///< ids that are never changed
};
/// Changes each token in the window: a positive logit is divided by `repetition`, a negative one
/// multiplied (Keskar et al. 2019); then less count * frequency + presence (OpenAI's API). Changes
/// nothing at a step that a constraint forces; tokens that it forced don't count.
VITRINE_API std::unique_ptr<SamplerStage> make_penalties_stage(const PenaltyOptions& options);
/// What make_dry_stage() is given.
struct DryOptions {
  float multiplier = 0.0f;      ///< 0 or more
  float base = 1.75f;           ///< 1 or more
  int32_t allowed_length = 2;   ///< 1 or more
  int32_t penalty_last_n = -1;  ///< last tokens of the history; -1: all
  std::vector<std::vector<int32_t>> sequence_breakers = {};  ///< ids that end a repetition
  std::vector<int32_t> exempt = {};                          ///< ids that are never changed
};
/// Takes multiplier * base^(n - allowed_length) off a token that would prolong a repetition of n
/// tokens (Weidmann 2024; breakers as in llama.cpp). A forced token breaks repetitions.
VITRINE_API std::unique_ptr<SamplerStage> make_dry_stage(const DryOptions& options);
/// Rules out what the step's mask (SampleContext::allowed_tokens) leaves out; nothing where there
/// is none. Its apply() throws kInvalidArgument where no token of nonzero probability is allowed.
VITRINE_API std::unique_ptr<SamplerStage> make_constraint_stage();
/// Divides the logits by `temperature` (> 0, finite).
VITRINE_API std::unique_ptr<SamplerStage> make_temperature_stage(float temperature);
/// Divides by a temperature between max(0, temperature - range) and temperature + range, that goes
/// with the entropy over its maximum, to the power of `exponent` (llama.cpp's temp-ext).
VITRINE_API std::unique_ptr<SamplerStage> make_dynamic_temperature_stage(float temperature,
                                                                         float range,
                                                                         float exponent);
/// Keeps logits at most `n` (> 0) standard deviations below the best (Tang et al. 2024).
VITRINE_API std::unique_ptr<SamplerStage> make_top_n_sigma_stage(float n);
/// Keeps exactly the `k` most probable tokens (k >= 1; all where there are fewer).
VITRINE_API std::unique_ptr<SamplerStage> make_top_k_stage(int32_t k);
/// Keeps tokens by how near their surprise is to the entropy, the fewest whose probabilities reach
/// `p` (0 < p <= 1; Meister et al. 2022), ties by probability and lower id.
VITRINE_API std::unique_ptr<SamplerStage> make_typical_p_stage(float p);
/// Keeps the smallest set of most probable tokens whose probabilities add up to at least `p`
/// (0 < p <= 1; Holtzman et al. 2019), as transformers' TopPLogitsWarper.
VITRINE_API std::unique_ptr<SamplerStage> make_top_p_stage(float p);
/// Keeps the tokens at least `p` times as probable as the best (0 <= p <= 1; Nguyen et al. 2024),
/// as transformers' MinPLogitsWarper.
VITRINE_API std::unique_ptr<SamplerStage> make_min_p_stage(float p);
/// Acts with `probability`: of the tokens at least as probable as `threshold`, where there are two
/// or more, keeps the least probable alone, beside those below (Weidmann 2024).
VITRINE_API std::unique_ptr<SamplerStage> make_xtc_stage(float probability, float threshold);
/// Mirostat 2 (Basu et al. 2020): draws among tokens of at most mu bits of surprise, and moves mu
/// (2 tau at first) by eta * (tau - surprise).
VITRINE_API std::unique_ptr<SamplerStage> make_mirostat_stage(float tau, float eta);
/// Draws from the softmax of what is left (candidates in their order, inverse of the cumulative
/// sum).
VITRINE_API std::unique_ptr<SamplerStage> make_draw_stage();
/// Chooses the largest logit, ties by lower id.
VITRINE_API std::unique_ptr<SamplerStage> make_greedy_stage();

}  // namespace vitrine
