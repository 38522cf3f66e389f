// SPDX-License-Identifier: Apache-2.0
// What the stages share: how candidates are ordered and narrowed.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "device_steps.h"
#include "scan.h"
#include "vitrine/sample.h"

namespace vitrine {

inline constexpr float kRuledOut = -std::numeric_limits<float>::infinity();

/// A sort key: ascending keys are descending logits, ties by lower id. `logit` is not NaN.
inline uint64_t candidate_key(float logit, int32_t id) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);  // -0 becomes +0: they tie
  const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t{~ascending} << 32 | static_cast<uint32_t>(id);
}

inline int32_t candidate_id(const Candidates& candidates, size_t index) {
  return candidates.ids.empty() ? static_cast<int32_t>(index) : candidates.ids[index];
}

/// Entries that a stage's own buffer must have so that it never grows again for this vocabulary.
inline size_t buffer_size(const Candidates& candidates) {
  const size_t count = candidates.logits.size();
  if (candidates.logits_storage == nullptr) return count;
  return std::max(count, candidates.logits_storage->size());
}

/// A stage of this room, with what the pipeline may use to look at fewer tokens. Never changes a
/// result: a stage that is asked for less sees every token that it could have kept.
class RoomStage : public SamplerStage {
 public:
  /// Leaves every candidate as it is at this step.
  virtual bool is_idle(const SampleContext&) const { return false; }
  /// Above 0: divides each logit by it and does nothing else.
  virtual float divisor() const { return 0; }
  /// Above 0: keeps tokens only that are among so many best ones.
  virtual size_t keeps_best() const { return 0; }
  /// True where describe() says what apply() does.
  virtual bool has_device_form() const { return true; }
  /// True where what describe() says hangs on the tokens before the position.
  virtual bool looks_back() const { return false; }
  /// Adds its steps at this place, where it is not idle.
  virtual void describe(const SampleContext& context, int64_t vocab_size,
                        DeviceSamplerSteps& steps) = 0;
  /// 0 or more: keeps tokens only whose logit is at most so far below the best one.
  virtual double keeps_within() const { return -1; }
};

/// The largest logit. Throws kInvalidArgument where nothing that can be chosen is left.
inline float largest_logit(const Candidates& candidates, const SamplerStage& stage,
                           const SampleContext& context) {
  const float largest = largest_of(candidates.logits);
  if (largest == kRuledOut || largest == std::numeric_limits<float>::infinity()) {
    throw Error(ErrorKind::kInvalidArgument,
                "sampler stage '" + std::string(stage.name()) + "' at position " +
                    std::to_string(context.position) + ": " +
                    (candidates.logits.empty() ? "no candidate is left"
                     : largest == kRuledOut    ? "every logit is -infinity"
                                               : "a logit is +infinity") +
                    "; expected a finite largest logit");
  }
  return largest;
}

/// Where a stage that narrows a dense choice writes its ids. Throws kInvalidArgument without room.
inline std::vector<int32_t>& id_storage(const Candidates& candidates) {
  if (candidates.ids_storage == nullptr ||
      candidates.ids_storage->size() < candidates.logits.size()) {
    throw Error(ErrorKind::kInvalidArgument,
                "candidates: ids_storage holds fewer ids than there are logits; expected room "
                "for the vocabulary");
  }
  return *candidates.ids_storage;
}

/// Keeps the candidates for which `keep(logit, id)` holds, in their order.
template <class Keep>
void filter_candidates(Candidates& candidates, const Keep& keep) {
  const bool dense = candidates.ids.empty();
  int32_t* ids = dense ? id_storage(candidates).data() : candidates.ids.data();
  size_t kept = 0;
  for (size_t index = 0; index < candidates.logits.size(); ++index) {
    const float logit = candidates.logits[index];
    const int32_t id = dense ? static_cast<int32_t>(index) : ids[index];
    if (!keep(logit, id)) continue;
    candidates.logits[kept] = logit;
    ids[kept] = id;
    ++kept;
  }
  candidates.logits = candidates.logits.first(kept);
  candidates.ids = std::span<int32_t>(ids, kept);
}

/// weights[i] = e^(logit i - largest): probabilities but for their sum, which is returned.
inline double softmax_weights(const Candidates& candidates, float largest,
                              std::vector<double>& weights) {
  const size_t count = candidates.logits.size();
  if (weights.size() < count) weights.resize(buffer_size(candidates));
  return exponentials(candidates.logits, largest, weights.data());
}

}  // namespace vitrine
