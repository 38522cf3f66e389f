// The room `sample`: from logits to one token id.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vitrine/core.h"

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
inline constexpr uint32_t kTemperatureStageId = 1;
inline constexpr uint32_t kTopKStageId = 2;
inline constexpr uint32_t kTopPStageId = 3;
inline constexpr uint32_t kMinPStageId = 4;
inline constexpr uint32_t kDrawStageId = 5;
inline constexpr uint32_t kGreedyStageId = 6;
inline constexpr uint32_t kConstraintStageId = 7;
/// The first number that a host's own stage may use.
inline constexpr uint32_t kFirstHostStageId = 1000;

/// The usual options; the value that switches a stage off stands beside it.
struct SamplerOptions {
  float temperature = 1.0f;  ///< 0: greedy
  int32_t top_k = 0;         ///< 0: off
  float top_p = 1.0f;        ///< 1: off (Holtzman et al. 2019, nucleus sampling)
  float min_p = 0.0f;        ///< 0: off (Nguyen et al. 2024)
  uint64_t seed = 0;
};

/// An ordered list of stages that ends with a selection.
///
///     auto pipeline = SamplerPipeline::from_options({.temperature = 0.8f, .top_p = 0.95f});
///     int32_t id = pipeline.sample(logits, {.seed = 7, .position = 12});
///
/// Not thread-safe: one pipeline a sequence. Buffers are allocated for the first vocabulary seen.
class VITRINE_API SamplerPipeline {
 public:
  SamplerPipeline();
  SamplerPipeline(SamplerPipeline&&) noexcept;
  SamplerPipeline& operator=(SamplerPipeline&&) noexcept;
  ~SamplerPipeline();

  /// The constraint's mask, temperature, top-k, top-p, min-p (those that are on), then the draw;
  /// the mask and greedy where temperature is 0. Throws kInvalidArgument for a value out of range
  /// (names option and range).
  static SamplerPipeline from_options(const SamplerOptions& options);

  void add(std::unique_ptr<SamplerStage> stage);
  const std::vector<std::unique_ptr<SamplerStage>>& stages() const;
  /// True where the output head's epilogue already knows the answer: greedy alone, or behind the
  /// mask of a constraint that never set one.
  bool is_device_greedy() const;
  /// A constraint's mask for the next sample(), and for that one only: SampleContext's
  /// allowed_tokens. Not copied: it has to live until then. `is_forced`: the constraint leaves no
  /// choice, so penalties stay away from this step, and never count the token that it takes.
  /// Throws kInvalidArgument for an empty mask and for a pipeline without a constraint stage.
  void set_allowed_tokens(std::span<const uint32_t> mask, bool is_forced = false);
  /// Positions [first, first + count) take tokens that a constraint forced without a sample() (a
  /// jump forward): penalties don't count them. What was marked from `first` on is forgotten, as
  /// sample() forgets what was marked from its position on, so that a rollback needs no call.
  void mark_forced(int64_t first, int64_t count);
  /// Runs the stages on a copy of `logits` [vocabulary]. A logit of -infinity rules its token out.
  /// Throws kInvalidArgument (names the position) for a logit that is NaN or +infinity, where every
  /// logit is -infinity, and for a pipeline that selects nothing or an id outside the vocabulary.
  int32_t sample(std::span<const float> logits, const SampleContext& context);
  /// How the last sample() was decided.
  const SampleDecision& decision() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The stages. All are deterministic: among equal logits the lower id counts as the more probable.
// A stage that narrows keeps the candidates' order and drops those of probability zero. Factories
// throw kInvalidArgument for a parameter out of range.

/// Rules out what the step's mask (SampleContext::allowed_tokens) leaves out; nothing where there
/// is none. Its apply() throws kInvalidArgument where no token of nonzero probability is allowed.
VITRINE_API std::unique_ptr<SamplerStage> make_constraint_stage();
/// Divides the logits by `temperature` (> 0, finite).
VITRINE_API std::unique_ptr<SamplerStage> make_temperature_stage(float temperature);
/// Keeps exactly the `k` most probable tokens (k >= 1; all where there are fewer).
VITRINE_API std::unique_ptr<SamplerStage> make_top_k_stage(int32_t k);
/// Keeps the smallest set of most probable tokens whose probabilities add up to at least `p`
/// (0 < p <= 1), as transformers' TopPLogitsWarper.
VITRINE_API std::unique_ptr<SamplerStage> make_top_p_stage(float p);
/// Keeps the tokens at least `p` times as probable as the best (0 <= p <= 1), as transformers'
/// MinPLogitsWarper.
VITRINE_API std::unique_ptr<SamplerStage> make_min_p_stage(float p);
/// Draws from the softmax of what is left (candidates in their order, inverse of the cumulative
/// sum).
VITRINE_API std::unique_ptr<SamplerStage> make_draw_stage();
/// The largest logit, ties by lower id.
VITRINE_API std::unique_ptr<SamplerStage> make_greedy_stage();

}  // namespace vitrine
