// SPDX-License-Identifier: Apache-2.0
// The place of a constraint's mask in the pipeline.
#include <algorithm>
#include <bit>

#include "candidates.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

constexpr uint32_t kAll = ~uint32_t{0};

class ConstraintStage : public RoomStage {
 public:
  std::string_view name() const override { return "constraint"; }
  uint32_t stage_id() const override { return kConstraintStageId; }

  bool is_idle(const SampleContext& context) const override {
    return context.allowed_tokens.empty();
  }
  std::unique_ptr<SamplerStage> fork() const override {
    return std::make_unique<ConstraintStage>(*this);
  }

  void apply(Candidates& candidates, const SampleContext& context) override {
    const std::span<const uint32_t> mask = context.allowed_tokens;
    if (mask.empty()) return;
    const auto allows = [&mask](int32_t id) {
      const auto word = static_cast<size_t>(id) / 32;
      return word < mask.size() && (mask[word] >> (static_cast<uint32_t>(id) % 32) & 1) != 0;
    };
    if (!candidates.ids.empty()) {
      filter_candidates(candidates, [&allows](float logit, int32_t id) {
        return logit != kRuledOut && allows(id);
      });
    } else if (is_narrow(mask, candidates.logits.size())) {
      gather(candidates, mask);
    } else {
      rule_out(candidates, mask);
    }
    const bool is_left = std::any_of(candidates.logits.begin(), candidates.logits.end(),
                                     [](float logit) { return logit > kRuledOut; });
    if (is_left) return;
    throw Error(ErrorKind::kInvalidArgument,
                "sampler stage 'constraint' at position " + std::to_string(context.position) +
                    ": the constraint allows no token of the " +
                    std::to_string(buffer_size(candidates)) +
                    " that the model gives a probability; expected one or more");
  }
  void describe(const SampleContext& context, int64_t, DeviceSamplerSteps& steps) override {
    steps.add(DeviceSamplerStep::Kind::kMask).mask = context.allowed_tokens;
  }

 private:
  // A short list of ids is quicker for the stages behind; a long one costs more than it saves.
  static bool is_narrow(std::span<const uint32_t> mask, size_t vocabulary) {
    size_t allowed = 0;
    for (const uint32_t word : mask) allowed += static_cast<size_t>(std::popcount(word));
    return allowed <= vocabulary / 8;
  }

  static void gather(Candidates& candidates, std::span<const uint32_t> mask) {
    std::vector<int32_t>& ids = id_storage(candidates);
    const size_t count = candidates.logits.size();
    size_t kept = 0;
    for (size_t word = 0; word < mask.size() && word * 32 < count; ++word) {
      for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
        const size_t id = word * 32 + static_cast<size_t>(std::countr_zero(bits));
        if (id >= count) break;
        const float logit = candidates.logits[id];
        if (logit == kRuledOut) continue;
        candidates.logits[kept] = logit;
        ids[kept++] = static_cast<int32_t>(id);
      }
    }
    candidates.logits = candidates.logits.first(kept);
    candidates.ids = std::span<int32_t>(ids).first(kept);
  }

  static void rule_out(Candidates& candidates, std::span<const uint32_t> mask) {
    const size_t count = candidates.logits.size();
    for (size_t first = 0; first < count; first += 32) {
      const uint32_t word = first / 32 < mask.size() ? mask[first / 32] : 0;
      if (word == kAll) continue;
      const size_t end = std::min(first + 32, count);
      for (size_t id = first; id < end; ++id) {
        if ((word >> (id - first) & 1) == 0) candidates.logits[id] = kRuledOut;
      }
    }
  }
};

}  // namespace

std::unique_ptr<SamplerStage> make_constraint_stage() {
  return std::make_unique<ConstraintStage>();
}

const StageKind& constraint_kind() {
  static const StageKind kKind{"constraint", StageRole::kConstraint, {}, [](const SamplerOptions&) {
                                 return make_constraint_stage();
                               }};
  return kKind;
}

}  // namespace vitrine
