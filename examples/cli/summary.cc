// SPDX-License-Identifier: Apache-2.0
#include "summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "common.h"
#include "slices.h"
#include "statistics.h"

namespace cli {

namespace {

constexpr size_t kSurprises = 5;
constexpr int kBarWidth = 8;              // characters
constexpr int kLayersAcross = 4;          // columns of the table
constexpr int kMaxExpertsInColumns = 16;  // beyond that: one line a layer, one character an expert

/// A bar of eighths of a character.
std::string bar(double fraction) {
  static constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::lround(std::clamp(fraction, 0.0, 1.0) * kBarWidth * 8));
  std::string text;
  for (int index = 0; index < eighths / 8; ++index) text += "█";
  text += kEighths[eighths % 8];
  const int width = eighths / 8 + (eighths % 8 != 0);
  return text + std::string(static_cast<size_t>(kBarWidth - width), ' ');
}

/// A bar of one character's height.
const char* column(double fraction) {
  static constexpr const char* kHeights[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  return kHeights[std::clamp(static_cast<int>(fraction * 8), 0, 7)];
}

/// A token's text on one line, in quotes.
std::string quoted_surprise(const std::string& bytes) {
  return nlohmann::json(bytes).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void Summary::add(const vitrine::TokenRecord& record) {
  ++tokens_;
  for (const vitrine::LayerRecord& layer : record.layers) {
    const size_t index = static_cast<size_t>(layer.layer);
    if (uses_.size() <= index) uses_.resize(index + 1);
    for (const vitrine::RouteRecord& route : layer.routes) {
      const size_t expert = static_cast<size_t>(route.expert);
      if (uses_[index].size() <= expert) uses_[index].resize(expert + 1);
      ++uses_[index][expert];
    }
  }
  if (!record.has_prediction || !record.prediction.generated) return;
  const float logprob = record.prediction.logprob;
  if (surprises_.size() == kSurprises && logprob >= surprises_.back().logprob) return;
  const auto place = std::upper_bound(
      surprises_.begin(), surprises_.end(), logprob,
      [](float value, const Surprise& surprise) { return value < surprise.logprob; });
  surprises_.insert(place, {record.position + 1, record.prediction.token, logprob, record.layers});
  if (surprises_.size() > kSurprises) surprises_.pop_back();
}

std::string Summary::expert_use(const vitrine::ModelSummary& model) const {
  if (model.num_experts == 0) return "experts     none: a dense model\n";
  const size_t experts = static_cast<size_t>(model.num_experts);
  std::vector<size_t> layers;  // those with experts
  for (size_t layer = 0; layer < uses_.size(); ++layer) {
    if (!uses_[layer].empty()) layers.push_back(layer);
  }
  const auto share = [&](size_t layer, size_t expert) {
    const std::vector<int64_t>& uses = uses_[layer];
    int64_t total = 0;
    for (int64_t count : uses) total += count;
    return expert < uses.size() ? static_cast<double>(uses[expert]) / static_cast<double>(total)
                                : 0.0;
  };
  double largest = 0;
  for (size_t layer : layers) {
    for (size_t expert = 0; expert < experts; ++expert) {
      largest = std::max(largest, share(layer, expert));
    }
  }
  std::string text = fmt::format(
      "experts     share of the routes of {} tokens ({} of {} a token), {}\n", tokens_,
      model.num_experts_per_token, experts,
      experts <= kMaxExpertsInColumns ? "by layer"
                                      : fmt::format("highest bar {:.1f} %", 100 * largest));
  if (experts > kMaxExpertsInColumns) {
    for (size_t layer : layers) {
      text += fmt::format("  layer {:<3} ", layer);
      for (size_t expert = 0; expert < experts; ++expert) {
        text += column(share(layer, expert) / largest);
      }
      text += "\n";
    }
    return text;
  }
  for (size_t first = 0; first < layers.size(); first += kLayersAcross) {
    const size_t last = std::min(layers.size(), first + kLayersAcross);
    text += "         ";
    for (size_t index = first; index < last; ++index) {
      text += fmt::format(" {:<16}", fmt::format("layer {}", layers[index]));
    }
    text += "\n";
    for (size_t expert = 0; expert < experts; ++expert) {
      text += fmt::format("  {:>6} ", expert);
      for (size_t index = first; index < last; ++index) {
        const double fraction = share(layers[index], expert);
        text += fmt::format(" {} {:4.1f} % ", bar(fraction / largest), 100 * fraction);
      }
      text += "\n";
    }
  }
  return text;
}

std::string Summary::text(const vitrine::ModelSummary& model,
                          const vitrine::Tokenizer& tokenizer) const {
  std::string text = expert_use(model);
  if (overwritten_ > 0) {
    text += fmt::format("            the ring forgot {} earlier passes; --audit keeps them all\n",
                        overwritten_);
  }
  text += "surprises   the least probable tokens, and the experts that made them\n";
  for (const Surprise& surprise : surprises_) {
    text += fmt::format("  {:>6}  {:<14} p = {:.4f}  ", surprise.position,
                        quoted_surprise(tokenizer.token_bytes(surprise.token)),
                        std::exp(static_cast<double>(surprise.logprob)));
    size_t shown = 0;
    for (const vitrine::LayerRecord& layer : surprise.layers) {
      if (layer.routes.empty()) continue;
      if (++shown > 8) {  // a line's width
        text += " …";
        break;
      }
      text += fmt::format(" L{}:", layer.layer);
      for (size_t slot = 0; slot < layer.routes.size(); ++slot) {
        text += fmt::format("{}{}", slot == 0 ? "" : "+", layer.routes[slot].expert);
      }
    }
    text += "\n";
  }
  return text;
}

std::string measure_overhead(vitrine::Stepper& engine, vitrine::AuditMode mode,
                             const std::vector<int32_t>& prompt, int64_t context) {
  if (mode == vitrine::AuditMode::kNone) return "not measured: the recorder is off";
  constexpr double kSeconds = 1.5;
  constexpr int kSliceTokens = 25;
  constexpr size_t kMaxPairs = 400, kFewestPairs = 4;
  std::vector<int32_t> prefix = prompt;
  const int64_t longest = std::max<int64_t>(1, context - kSliceTokens);
  if (static_cast<int64_t>(prefix.size()) > longest) prefix.resize(static_cast<size_t>(longest));

  vitrine::SlabRing ring(size_t{1} << 20, vitrine::SlabRing::WhenFull::kOverwrite);
  engine.set_audit_sink(&ring);
  std::vector<double> overheads;
  {
    SliceRunner runner(engine, prefix, context);
    const auto start = std::chrono::steady_clock::now();
    const auto elapsed = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    runner.run(mode, kSliceTokens);
    runner.run(vitrine::AuditMode::kNone, kSliceTokens);
    const double pair_seconds = elapsed();
    while (overheads.size() < kMaxPairs && interrupt_signal() == 0 &&
           elapsed() + 2 * pair_seconds < kSeconds) {
      runner.run_pairs(mode, kSliceTokens, overheads);
    }
  }
  engine.set_audit_mode(mode);
  engine.set_audit_sink(nullptr);
  if (overheads.size() < kFewestPairs) {
    return "not measured: too slow here for two seconds (see vitrine bench audit)";
  }
  const Interval interval = bootstrap_median_interval(overheads, 2000);
  return fmt::format(
      "{:+.2f} % [{:+.2f}, {:+.2f}]  median of {} pairs of {}-token slices with the "
      "recorder on and off by turns, 95 % interval",
      100 * median(overheads), 100 * interval.low, 100 * interval.high, overheads.size(),
      kSliceTokens);
}

}  // namespace cli
