// SPDX-License-Identifier: Apache-2.0
// A sampler's choice as a list of steps that a device makes where the logits are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "vitrine/sample.h"

namespace vitrine {

/// One step of a choice that is made where the logits are (DeviceForm::describe): what it
/// does to a row of logits [vocabulary], -infinity meaning ruled out. w is the softmax of what is
/// left; among equal logits the lower id is the better one.
struct DeviceSamplerStep {
  /// What is done to the logits, or to what is left of them.
  enum class Kind : uint8_t {
    kAdd,                 ///< logits[ids[i]] += values[i]
    kPenalise,            ///< logits[ids[i]]: / a where 0 or more, * a below; then - values[i]
    kMask,                ///< rules out ids whose bit in `mask` is not set
    kDivide,              ///< / a
    kDynamicTemperature,  ///< / a + (b - a) * (entropy / ln(tokens left))^c
    kTopNSigma,           ///< keeps logits at most a deviations below the best
    kTopK,                ///< keeps the a best
    kTypicalP,            ///< keeps the smallest set nearest to the entropy with sum(w) >= a
    kTopP,                ///< keeps the smallest set of the best with sum(w) >= a
    kMinP,                ///< keeps logits at least the best + a
    kXtc,                 ///< of two and more with w >= a keeps the least probable one
    kDraw,                ///< chooses the first id at which the sum of w exceeds a
    kGreedy,              ///< chooses the best
  };
  Kind kind = Kind::kGreedy;       ///< what is done
  double a = 0;                    ///< as `kind` says
  double b = 0;                    ///< as `kind` says
  double c = 0;                    ///< as `kind` says
  std::vector<int32_t> ids;        ///< each once
  std::vector<float> values;       ///< as many; -infinity in kAdd rules out
  std::span<const uint32_t> mask;  ///< not copied
};

/// The steps of one choice; a list that is used again keeps its memory.
class DeviceSamplerSteps {
 public:
  /// Leaves no step.
  void clear() { count_ = 0; }
  /// Appends a step and returns it.
  DeviceSamplerStep& add(DeviceSamplerStep::Kind kind, double a = 0, double b = 0, double c = 0);
  /// Returns the steps in their order.
  std::span<const DeviceSamplerStep> list() const { return std::span(steps_).first(count_); }

 private:
  std::vector<DeviceSamplerStep> steps_;
  size_t count_ = 0;
};

/// What whoever chooses on a device asks a pipeline.
struct DeviceForm {
  /// What sample() would do, to be done on a device; counts as a call of sample() for masks and
  /// forced positions. `vocab_size`: of the row. Probabilities may round otherwise there, so a draw
  /// at the edge of two tokens may fall to the other one. Throws kUnsupported without a device
  /// form, and what stages throw for ids beyond the vocabulary.
  static void describe(SamplerPipeline& pipeline, const SampleContext& context, int64_t vocab_size,
                       DeviceSamplerSteps& steps);
  /// True where describe() hangs on the tokens before the position (penalties, DRY, banned
  /// sequences), or where there is no device form: a choice cannot be described before they are
  /// known.
  static bool looks_back(const SamplerPipeline& pipeline);
};

}  // namespace vitrine
