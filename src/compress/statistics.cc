// SPDX-License-Identifier: Apache-2.0
#include "vitrine/calibration_statistics.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "layer_run.h"
#include "model/architecture.h"
#include "ops/decoder_ops.h"
#include "routing_places.h"

namespace vitrine {
namespace {

using compress::ExpertLayer;

constexpr size_t kMostWorst = 16;

/// A norm's output: a place of a layer that is shown as an op's input.
struct NormPlace {
  size_t tap = 0;
  ChannelStatistics* statistics = nullptr;
  std::vector<float> largest;
  std::vector<double> sums;
  int64_t rows = 0;
};

/// Returns the taps at which the norms of a layer are seen: the first op of attention (or what
/// stands in its place) and of the feed-forward block that reads one.
std::vector<Tap> norm_taps(const compress::LayerSites& layer) {
  std::vector<Tap> taps;
  bool has_mixer = false, has_block = false;
  for (const Tap& site : layer.sites) {
    if (site.side != Tap::Side::kInput || (site.value != "normed" && site.value != "residual")) {
      continue;
    }
    bool& has = site.op == "experts" || site.op == "dense_ffn" ? has_block : has_mixer;
    if (!has) taps.push_back(site);
    has = true;
  }
  return taps;
}

/// Adds up what taps show.
class StatisticsReader final : public TapReader {
 public:
  StatisticsReader(CalibrationStatistics& statistics, std::span<const ExpertLayer> experts,
                   std::vector<NormPlace>& norms)
      : statistics_(statistics), experts_(experts), norms_(norms) {}

  void read(const TapRows& rows) override {
    for (size_t i = 0; i < experts_.size(); ++i) {
      if (experts_[i].tap == rows.tap) count(rows, statistics_.routing[i]);
    }
    for (NormPlace& norm : norms_) {
      if (norm.tap == rows.tap) add(rows, norm);
    }
  }

 private:
  static void count(const TapRows& rows, LayerRouting& routing) {
    for (size_t slot = 0; slot < rows.experts.size(); ++slot) {
      const auto expert = static_cast<size_t>(rows.experts[slot]);
      ++routing.tokens[expert];
      routing.gate_mass[expert] += double{rows.weights[slot]};
    }
  }

  static void add(const TapRows& rows, NormPlace& norm) {
    const auto width = static_cast<size_t>(rows.width);
    norm.largest.resize(width);
    norm.sums.resize(width);
    for (size_t begin = 0; begin < rows.rows.size(); begin += width) {
      ++norm.rows;
      for (size_t c = 0; c < width; ++c) {
        const float size = std::fabs(rows.rows[begin + c]);
        norm.largest[c] = std::max(norm.largest[c], size);
        norm.sums[c] += double{size};
      }
    }
  }

  CalibrationStatistics& statistics_;
  std::span<const ExpertLayer> experts_;
  std::vector<NormPlace>& norms_;
};

void summarise(const NormPlace& norm, double ratio) {
  ChannelStatistics& statistics = *norm.statistics;
  statistics.width = std::ssize(norm.largest);
  if (norm.rows == 0) return;
  std::vector<float> sorted = norm.largest;
  std::ranges::sort(sorted);
  const size_t half = sorted.size() / 2;
  statistics.median = sorted.size() % 2 == 1
                          ? double{sorted[half]}
                          : (double{sorted[half - 1]} + double{sorted[half]}) / 2;
  statistics.largest = double{sorted.back()};
  double sum = 0;
  for (const double column : norm.sums) sum += column;
  statistics.mean = sum / static_cast<double>(norm.rows * statistics.width);
  for (size_t c = 0; c < norm.largest.size(); ++c) {
    if (double{norm.largest[c]} <= ratio * statistics.median) continue;
    statistics.worst.push_back({static_cast<int64_t>(c), double{norm.largest[c]}});
  }
  statistics.outliers = std::ssize(statistics.worst);
  std::ranges::stable_sort(statistics.worst, std::greater(), &OutlierChannel::largest);
  if (statistics.worst.size() > kMostWorst) statistics.worst.resize(kMostWorst);
}

}  // namespace

CalibrationStatistics measure_statistics(const std::string& model,
                                         const std::vector<std::vector<int32_t>>& texts,
                                         const StatisticsOptions& options) {
  compress::require_texts(texts);
  const ops::Graph graph = compress::graph_of(model);
  const std::vector<compress::LayerSites> layers = compress::find_layer_sites(graph);
  EngineOptions engine_options =
      compress::text_options(texts, options.threads, options.lenient_weights);
  const std::vector<ExpertLayer> experts = compress::add_expert_taps(graph, engine_options);
  CalibrationStatistics statistics;
  statistics.outlier_ratio = options.outlier_ratio;
  statistics.starved_below =
      options.starved_below > 0 ? options.starved_below : compress::columns_of_experts(experts);
  for (const ExpertLayer& layer : experts) {
    const auto count = static_cast<size_t>(layer.experts);
    statistics.routing.push_back(
        {layer.layer, std::vector<int64_t>(count), std::vector<double>(count)});
  }
  std::vector<NormPlace> norms;
  for (const compress::LayerSites& layer : layers) {
    for (const Tap& tap : norm_taps(layer)) {
      statistics.channels.emplace_back();
      statistics.channels.back().layer = tap.layer;
      statistics.channels.back().reader = tap.op;
      norms.emplace_back();
      norms.back().tap = engine_options.taps.size();
      engine_options.taps.push_back(tap);
    }
  }
  for (size_t i = 0; i < norms.size(); ++i) norms[i].statistics = &statistics.channels[i];
  const auto engine = Engine::load(model, engine_options);
  StatisticsReader reader(statistics, experts, norms);
  engine->set_tap_reader(&reader);
  for (const std::vector<int32_t>& text : texts) {
    if (options.progress) options.progress(&text - texts.data(), std::ssize(texts));
    compress::run_text(*engine, text);
    statistics.tokens += std::ssize(text);
  }
  engine->set_tap_reader(nullptr);
  for (const NormPlace& norm : norms) summarise(norm, options.outlier_ratio);
  return statistics;
}

std::vector<StarvedExpert> starved_experts(const CalibrationStatistics& statistics) {
  std::vector<StarvedExpert> starved;
  for (const LayerRouting& layer : statistics.routing) {
    for (size_t e = 0; e < layer.tokens.size(); ++e) {
      if (layer.tokens[e] >= statistics.starved_below) continue;
      starved.push_back({layer.layer, static_cast<int64_t>(e), layer.tokens[e]});
    }
  }
  return starved;
}

void require_statistics_of(const CalibrationStatistics& statistics, const std::string& model,
                           const std::string& file) {
  EngineOptions unused;
  const std::vector<ExpertLayer> experts =
      compress::add_expert_taps(compress::graph_of(model), unused);
  const auto is_same = [](const LayerRouting& routing, const ExpertLayer& layer) {
    return routing.layer == layer.layer && std::ssize(routing.tokens) == layer.experts;
  };
  if (std::ranges::equal(statistics.routing, experts, is_same)) return;
  const auto shape = [](size_t layers, int64_t count) {
    return std::to_string(layers) + " layers of " + std::to_string(count) + " experts";
  };
  throw Error(ErrorKind::kBadFile,
              file + ": 'statistics/routing' is of " +
                  shape(statistics.routing.size(),
                        statistics.routing.empty() ? 0 : std::ssize(statistics.routing[0].tokens)) +
                  "; expected " + shape(experts.size(), experts.empty() ? 0 : experts[0].experts) +
                  ", as " + model + " has");
}

}  // namespace vitrine
