// What the stages share: how candidates are ordered and narrowed.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "vitrine/core.h"

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

/// The largest logit. Throws kInvalidArgument where nothing that can be chosen is left.
inline float largest_logit(const Candidates& candidates, const SamplerStage& stage,
                           const SampleContext& context) {
  float largest = kRuledOut;
  for (float logit : candidates.logits) largest = logit > largest ? logit : largest;
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

}  // namespace vitrine
