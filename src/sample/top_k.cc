// SPDX-License-Identifier: Apache-2.0
// Keeps the k most probable tokens (Fan et al. 2018, "Hierarchical Neural Story Generation").
#include <algorithm>
#include "candidates.h"
#include "stage_kind.h"

namespace vitrine {

namespace {

class TopKStage : public RoomStage {
 public:
  explicit TopKStage(int32_t k) : k_(static_cast<size_t>(k)) {}
  std::string_view name() const override { return "top_k"; }
  uint32_t stage_id() const override { return kTopKStageId; }

  size_t keeps_best() const override { return k_; }
  std::string parameters() const override { return "k = " + std::to_string(k_); }
  std::unique_ptr<SamplerStage> fork() const override { return std::make_unique<TopKStage>(*this); }

  void apply(Candidates& candidates, const SampleContext& context) override {
    largest_logit(candidates, *this, context);
    const size_t count = candidates.logits.size();
    if (k_ >= count) return;
    // A buffer of at least twice k is cut back to the best k whenever it is full: linear in the
    // vocabulary for any order of logits, and nearly one comparison a token for a small k.
    const size_t room = std::min(buffer_size(candidates), std::max<size_t>(2 * k_, 1024));
    if (keys_.size() < room) keys_.resize(room);
    const auto first = keys_.begin();
    const auto last_kept = first + static_cast<ptrdiff_t>(k_ - 1);
    uint64_t limit = candidate_key(kRuledOut, 0);
    size_t filled = 0;
    for (size_t index = 0; index < count; ++index) {
      const uint64_t key = candidate_key(candidates.logits[index], candidate_id(candidates, index));
      if (key >= limit) continue;
      keys_[filled++] = key;
      if (filled < room) continue;
      std::nth_element(first, last_kept, first + static_cast<ptrdiff_t>(filled));
      filled = k_;
      limit = *last_kept;
    }
    uint64_t threshold = candidate_key(kRuledOut, 0) - 1;
    if (filled >= k_) {
      std::nth_element(first, last_kept, first + static_cast<ptrdiff_t>(filled));
      threshold = *last_kept;
    }
    filter_candidates(candidates, [threshold](float logit, int32_t id) {
      return candidate_key(logit, id) <= threshold;
    });
  }
  void describe(const SampleContext&, int64_t, DeviceSamplerSteps& steps) override {
    steps.add(DeviceSamplerStep::Kind::kTopK, static_cast<double>(k_));
  }

 private:
  size_t k_;
  std::vector<uint64_t> keys_;
};

}  // namespace

std::unique_ptr<SamplerStage> make_top_k_stage(int32_t k) {
  if (k < 1) refuse_option("top_k", std::to_string(k), "1 or more (0 switches it off)");
  return std::make_unique<TopKStage>(k);
}

const StageKind& top_k_kind() {
  static const StageKind kKind{
      "top_k",
      StageRole::kFilter,
      {{"top_k", &SamplerOptions::top_k, "so many most probable tokens stay; 0: off"}},
      [](const SamplerOptions& options) {
        return options.top_k == 0 ? nullptr : make_top_k_stage(options.top_k);
      }};
  return kKind;
}

}  // namespace vitrine
