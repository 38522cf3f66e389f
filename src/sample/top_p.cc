// SPDX-License-Identifier: Apache-2.0
// Keeps the smallest set of most probable tokens that reaches p (Holtzman et al. 2019, nucleus
// sampling).
#include <algorithm>
#include "candidates.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

class TopPStage : public RoomStage {
 public:
  explicit TopPStage(float p) : p_(p) {}
  std::string_view name() const override { return "top_p"; }
  uint32_t stage_id() const override { return kTopPStageId; }

  std::string parameters() const override { return "p = " + shortest(p_); }
  std::unique_ptr<SamplerStage> fork() const override { return std::make_unique<TopPStage>(*this); }

  void apply(Candidates& candidates, const SampleContext& context) override {
    const float largest = largest_logit(candidates, *this, context);
    if (p_ >= 1.0f) return;
    const double total = softmax_weights(candidates, largest, weights_);
    const double target = static_cast<double>(p_) * total;
    double above = 0;  // mass of what is surely kept
    const size_t filled = candidates.logits.size() < kManyCandidates
                              ? take_all(candidates)
                              : take_border(candidates, largest, target, above);
    // Quickselect by mass: the key at which the sum over better-or-equal candidates reaches p.
    size_t low = 0, high = filled;
    while (high - low > 1) {
      const size_t middle = low + (high - low) / 2;
      const auto first = entries_.begin();
      std::nth_element(first + static_cast<ptrdiff_t>(low), first + static_cast<ptrdiff_t>(middle),
                       first + static_cast<ptrdiff_t>(high),
                       [](const Entry& a, const Entry& b) { return a.key < b.key; });
      double half = 0;
      for (size_t index = low; index < middle; ++index) half += entries_[index].weight;
      if (above + half >= target) {
        high = middle;
      } else {
        above += half;
        low = middle;
      }
    }
    const uint64_t threshold = std::min(entries_[low].key, candidate_key(kRuledOut, 0) - 1);
    filter_candidates(candidates, [threshold](float logit, int32_t id) {
      return candidate_key(logit, id) <= threshold;
    });
  }
  void describe(const SampleContext&, int64_t, DeviceSamplerSteps& steps) override {
    if (p_ < 1.0f) steps.add(DeviceSamplerStep::Kind::kTopP, p_);
  }

 private:
  struct Entry {
    uint64_t key;
    double weight;  // exp(logit - largest)
  };

  // Buckets of equal width by distance from the best logit; the last one takes all the rest.
  static constexpr size_t kManyCandidates = 4096, kBuckets = 2048;
  static constexpr float kBucketsPerNat = 64;
  static size_t bucket_of(float logit, float largest) {
    const float bucket = (largest - logit) * kBucketsPerNat;
    return bucket < static_cast<float>(kBuckets - 1) ? static_cast<size_t>(bucket) : kBuckets - 1;
  }

  Entry entry(const Candidates& candidates, size_t index) const {
    return {candidate_key(candidates.logits[index], candidate_id(candidates, index)),
            weights_[index]};
  }

  size_t take_all(const Candidates& candidates) {
    const size_t count = candidates.logits.size();
    if (entries_.size() < count) entries_.resize(buffer_size(candidates));
    for (size_t index = 0; index < count; ++index) entries_[index] = entry(candidates, index);
    return count;
  }

  /// The candidates of the bucket in which p is reached; `above`: the mass of those before.
  size_t take_border(const Candidates& candidates, float largest, double target, double& above) {
    const size_t count = candidates.logits.size();
    if (entries_.size() < count) entries_.resize(buffer_size(candidates));
    masses_.assign(kBuckets, 0.0);
    for (size_t index = 0; index < count; ++index) {
      masses_[bucket_of(candidates.logits[index], largest)] += weights_[index];
    }
    size_t border = 0;  // the last bucket of any mass where rounding keeps the sum below p
    double sum = 0;
    for (size_t bucket = 0; bucket < kBuckets && (bucket == 0 || sum < target); ++bucket) {
      if (masses_[bucket] == 0.0) continue;
      border = bucket;
      above = sum;
      sum += masses_[bucket];
    }
    size_t filled = 0;
    for (size_t index = 0; index < count; ++index) {
      if (bucket_of(candidates.logits[index], largest) != border) continue;
      entries_[filled++] = entry(candidates, index);
    }
    return filled;
  }

  float p_;
  std::vector<double> masses_;  // of the buckets
  std::vector<double> weights_;
  std::vector<Entry> entries_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_top_p_stage(float p) {
  if (!(p > 0.0f && p <= 1.0f)) {
    refuse_option("top_p", shortest(p), "above 0 and at most 1 (1 switches it off)");
  }
  return std::make_unique<TopPStage>(p);
}

const StageKind& top_p_kind() {
  static const StageKind kKind{
      "top_p",
      StageRole::kFilter,
      {{"top_p", &SamplerOptions::top_p, "the most probable tokens that reach p stay; 1: off"}},
      [](const SamplerOptions& options) {
        auto stage = make_top_p_stage(options.top_p);
        return options.top_p == 1.0f ? nullptr : std::move(stage);
      }};
  return kKind;
}

}  // namespace vitrine
