// SPDX-License-Identifier: Apache-2.0
// Keeps the tokens whose surprise is nearest to the entropy, the smallest such set that reaches p
// (Meister et al. 2022, "Locally Typical Sampling"; transformers' TypicalLogitsWarper).
#include <algorithm>
#include <cmath>
#include <tuple>

#include "candidates.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

class TypicalPStage : public RoomStage {
 public:
  explicit TypicalPStage(float p) : p_(p) {}
  std::string_view name() const override { return "typical_p"; }
  uint32_t stage_id() const override { return kTypicalPStageId; }
  std::string parameters() const override { return "p = " + shortest(p_); }
  std::unique_ptr<SamplerStage> fork() const override {
    return std::make_unique<TypicalPStage>(*this);
  }

  void apply(Candidates& candidates, const SampleContext& context) override {
    const float largest = largest_logit(candidates, *this, context);
    if (p_ >= 1.0f) return;
    const size_t count = candidates.logits.size();
    const double total = softmax_weights(candidates, largest, weights_);
    if (entries_.size() < count) entries_.resize(buffer_size(candidates));
    // Surprise - entropy = mean logit - logit: the logarithm of the total is in both.
    double mean = 0;
    for (size_t index = 0; index < count; ++index) {
      if (weights_[index] == 0.0) continue;
      mean += weights_[index] / total * (static_cast<double>(candidates.logits[index]) - largest);
    }
    size_t filled = 0;
    for (size_t index = 0; index < count; ++index) {
      if (weights_[index] == 0.0) continue;
      const double logit = static_cast<double>(candidates.logits[index]) - largest;
      entries_[filled++] = {
          std::abs(mean - logit),
          candidate_key(candidates.logits[index], candidate_id(candidates, index)),
          weights_[index]};
    }
    const Entry last = find_last(filled, static_cast<double>(p_) * total);
    filter_candidates(candidates, [&](float logit, int32_t id) {
      if (logit == kRuledOut) return false;
      const Entry entry{std::abs(mean - (static_cast<double>(logit) - largest)),
                        candidate_key(logit, id), 0};
      return !(last < entry);
    });
  }
  void describe(const SampleContext&, int64_t, DeviceSamplerSteps& steps) override {
    if (p_ < 1.0f) steps.add(DeviceSamplerStep::Kind::kTypicalP, p_);
  }

 private:
  struct Entry {
    double distance;
    uint64_t key;  // ties: the more probable token, then the lower id
    double weight;
    bool operator<(const Entry& other) const {
      return std::tie(distance, key) < std::tie(other.distance, other.key);
    }
  };

  /// The entry at which the sum over it and all before it reaches `target`: quickselect by mass.
  Entry find_last(size_t count, double target) {
    double before = 0;  // mass of the entries before `low`
    size_t low = 0, high = count;
    while (high - low > 1) {
      const size_t middle = low + (high - low) / 2;
      const auto at = [this](size_t index) {
        return entries_.begin() + static_cast<ptrdiff_t>(index);
      };
      std::nth_element(at(low), at(middle), at(high));
      double half = 0;
      for (size_t index = low; index < middle; ++index) half += entries_[index].weight;
      if (before + half >= target) {
        high = middle;
      } else {
        before += half;
        low = middle;
      }
    }
    return entries_[low];
  }

  float p_;
  std::vector<double> weights_;
  std::vector<Entry> entries_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_typical_p_stage(float p) {
  if (!(p > 0.0f && p <= 1.0f)) {
    refuse_option("typical_p", shortest(p), "above 0 and at most 1 (1 switches it off)");
  }
  return std::make_unique<TypicalPStage>(p);
}

const StageKind& typical_p_kind() {
  static const StageKind kKind{"typical_p",
                               StageRole::kFilter,
                               {{"typical_p", &SamplerOptions::typical_p,
                                 "tokens of the most typical surprise that reach p stay; 1: off"}},
                               [](const SamplerOptions& options) {
                                 auto stage = make_typical_p_stage(options.typical_p);
                                 return options.typical_p == 1.0f ? nullptr : std::move(stage);
                               }};
  return kKind;
}

}  // namespace vitrine
