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
    const size_t count = candidates.logits.size();
    const double total = softmax_weights(candidates, largest, weights_);
    if (entries_.size() < count) entries_.resize(buffer_size(candidates));
    for (size_t index = 0; index < count; ++index) {
      entries_[index] = {candidate_key(candidates.logits[index], candidate_id(candidates, index)),
                         weights_[index]};
    }
    // Quickselect by mass: the key at which the sum over better-or-equal candidates reaches p.
    const double target = static_cast<double>(p_) * total;
    double above = 0;  // mass of the entries before `low`, all kept
    size_t low = 0, high = count;
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

 private:
  struct Entry {
    uint64_t key;
    double weight;  // exp(logit - largest)
  };
  float p_;
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
