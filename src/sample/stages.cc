#include <algorithm>
#include <cmath>
#include <cstdio>

#include "candidates.h"
#include "vitrine/sample.h"

namespace vitrine {

namespace {

[[noreturn]] void refuse(const std::string& option, const std::string& found,
                         const std::string& expected) {
  throw Error(ErrorKind::kInvalidArgument,
              "sampler option " + option + " is " + found + "; expected " + expected);
}

std::string shortest(float value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", static_cast<double>(value));
  return text;
}

class TemperatureStage : public SamplerStage {
 public:
  explicit TemperatureStage(float temperature) : temperature_(temperature) {}
  std::string_view name() const override { return "temperature"; }
  uint32_t stage_id() const override { return kTemperatureStageId; }

  void apply(Candidates& candidates, const SampleContext& context) override {
    const float largest = largest_logit(candidates, *this, context);
    // Shifting changes no probability; it is needed only where the quotient leaves float's range.
    const float shift = std::isfinite(largest / temperature_) ? 0.0f : largest;
    for (float& logit : candidates.logits) logit = (logit - shift) / temperature_;
  }

 private:
  float temperature_;
};

class TopKStage : public SamplerStage {
 public:
  explicit TopKStage(int32_t k) : k_(static_cast<size_t>(k)) {}
  std::string_view name() const override { return "top_k"; }
  uint32_t stage_id() const override { return kTopKStageId; }

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

 private:
  size_t k_;
  std::vector<uint64_t> keys_;
};

class TopPStage : public SamplerStage {
 public:
  explicit TopPStage(float p) : p_(p) {}
  std::string_view name() const override { return "top_p"; }
  uint32_t stage_id() const override { return kTopPStageId; }

  void apply(Candidates& candidates, const SampleContext& context) override {
    const double largest = largest_logit(candidates, *this, context);
    if (p_ >= 1.0f) return;
    const size_t count = candidates.logits.size();
    if (entries_.size() < count) entries_.resize(buffer_size(candidates));
    double total = 0;
    for (size_t index = 0; index < count; ++index) {
      const float logit = candidates.logits[index];
      const double weight = std::exp(logit - largest);
      entries_[index] = {candidate_key(logit, candidate_id(candidates, index)), weight};
      total += weight;
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
  std::vector<Entry> entries_;
};

class MinPStage : public SamplerStage {
 public:
  explicit MinPStage(float p) : log_p_(std::log(static_cast<double>(p))) {}
  std::string_view name() const override { return "min_p"; }
  uint32_t stage_id() const override { return kMinPStageId; }

  void apply(Candidates& candidates, const SampleContext& context) override {
    // probability / best probability = exp(logit - largest)
    const double largest = largest_logit(candidates, *this, context);
    filter_candidates(candidates, [largest, this](float logit, int32_t) {
      return logit != kRuledOut && logit - largest >= log_p_;
    });
  }

 private:
  double log_p_;
};

class DrawStage : public SamplerStage {
 public:
  std::string_view name() const override { return "draw"; }
  uint32_t stage_id() const override { return kDrawStageId; }

  void apply(Candidates& candidates, const SampleContext& context) override {
    const double largest = largest_logit(candidates, *this, context);
    const size_t count = candidates.logits.size();
    if (cumulative_.size() < count) cumulative_.resize(buffer_size(candidates));
    double total = 0;
    for (size_t index = 0; index < count; ++index) {
      total += std::exp(candidates.logits[index] - largest);
      cumulative_[index] = total;
    }
    const double target = philox_uniform(context, stage_id(), 0) * total;
    const auto first = cumulative_.begin();
    const auto last = first + static_cast<ptrdiff_t>(count);
    auto chosen = std::upper_bound(first, last, target);
    // The product may round up to the total: then the last candidate of nonzero probability.
    if (chosen == last) chosen = std::lower_bound(first, last, total);
    const double before = chosen == first ? 0.0 : *(chosen - 1);
    candidates.selected = candidate_id(candidates, static_cast<size_t>(chosen - first));
    candidates.selected_probability = static_cast<float>((*chosen - before) / total);
  }

 private:
  std::vector<double> cumulative_;
};

class GreedyStage : public SamplerStage {
 public:
  std::string_view name() const override { return "greedy"; }
  uint32_t stage_id() const override { return kGreedyStageId; }
  bool is_device_greedy() const override { return true; }

  void apply(Candidates& candidates, const SampleContext& context) override {
    largest_logit(candidates, *this, context);
    uint64_t best = std::numeric_limits<uint64_t>::max();
    for (size_t index = 0; index < candidates.logits.size(); ++index) {
      best =
          std::min(best, candidate_key(candidates.logits[index], candidate_id(candidates, index)));
    }
    candidates.selected = static_cast<int32_t>(static_cast<uint32_t>(best));
    candidates.selected_probability = 1.0f;
  }
};

}  // namespace

std::unique_ptr<SamplerStage> make_temperature_stage(float temperature) {
  if (!(temperature > 0.0f) || !std::isfinite(temperature)) {
    refuse("temperature", shortest(temperature), "a finite number above 0 (0 means greedy)");
  }
  return std::make_unique<TemperatureStage>(temperature);
}

std::unique_ptr<SamplerStage> make_top_k_stage(int32_t k) {
  if (k < 1) refuse("top_k", std::to_string(k), "1 or more (0 switches it off)");
  return std::make_unique<TopKStage>(k);
}

std::unique_ptr<SamplerStage> make_top_p_stage(float p) {
  if (!(p > 0.0f && p <= 1.0f)) {
    refuse("top_p", shortest(p), "above 0 and at most 1 (1 switches it off)");
  }
  return std::make_unique<TopPStage>(p);
}

std::unique_ptr<SamplerStage> make_min_p_stage(float p) {
  if (!(p >= 0.0f && p <= 1.0f)) {
    refuse("min_p", shortest(p), "from 0 to 1 (0 switches it off)");
  }
  return std::make_unique<MinPStage>(p);
}

std::unique_ptr<SamplerStage> make_draw_stage() { return std::make_unique<DrawStage>(); }

std::unique_ptr<SamplerStage> make_greedy_stage() { return std::make_unique<GreedyStage>(); }

}  // namespace vitrine
