// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cover.h"
#include "layer_run.h"
#include "routing_places.h"
#include "vitrine/calibration_cover.h"

namespace vitrine {
namespace {

using compress::ExpertLayer;
using compress::WindowGift;

/// Counts the pairs of a layer and an expert that a text meets. Pairs are numbered layer by layer.
class PairReader final : public TapReader {
 public:
  explicit PairReader(std::span<const ExpertLayer> layers) : layers_(layers) {
    for (const ExpertLayer& layer : layers_) {
      first_.push_back(pairs_);
      pairs_ += static_cast<int32_t>(layer.experts);
    }
  }
  int32_t pairs() const { return pairs_; }

  void read(const TapRows& rows) override {
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (layers_[i].tap != rows.tap) continue;
      for (const int32_t expert : rows.experts) ++counts_[first_[i] + expert];
    }
  }
  WindowGift take(int64_t length) {
    WindowGift gift{length, {counts_.begin(), counts_.end()}};
    counts_.clear();
    return gift;
  }

 private:
  std::span<const ExpertLayer> layers_;
  std::vector<int32_t> first_;
  std::map<int32_t, int32_t> counts_;
  int32_t pairs_ = 0;
};

/// Each pair's share of its layer's live routing times the number of experts; 1 without any.
std::vector<double> weights_of(std::span<const ExpertLayer> layers, const AuditRouting& live) {
  std::vector<double> weights;
  const auto is_same = [](const LayerRouting& routing, const ExpertLayer& layer) {
    return routing.layer == layer.layer && std::ssize(routing.tokens) == layer.experts;
  };
  if (!live.routing.empty() && !std::ranges::equal(live.routing, layers, is_same)) {
    throw Error(
        ErrorKind::kInvalidArgument,
        "the logs are of a model with other layers or experts; expected logs of this model");
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto experts = static_cast<double>(layers[i].experts);
    double sum = 0;
    if (!live.routing.empty()) {
      for (const int64_t uses : live.routing[i].tokens) sum += static_cast<double>(uses);
    }
    for (size_t e = 0; e < static_cast<size_t>(layers[i].experts); ++e) {
      weights.push_back(sum > 0 ? experts * static_cast<double>(live.routing[i].tokens[e]) / sum
                                : 1.0);
    }
  }
  return weights;
}

/// Experts that starve, and their share of what weights stand for.
std::pair<int64_t, double> starved_of(std::span<const int64_t> tokens,
                                      std::span<const double> weights, int64_t need) {
  int64_t starved = 0;
  double share = 0, all = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    all += weights[i];
    if (tokens[i] >= need) continue;
    ++starved;
    share += weights[i];
  }
  return {starved, all > 0 ? share / all : 0.0};
}

}  // namespace

WindowChoice cover_windows(const std::string& model,
                           const std::vector<std::vector<int32_t>>& windows,
                           const CoverOptions& options) {
  compress::require_texts(windows);
  EngineOptions engine_options =
      compress::text_options(windows, options.threads, options.lenient_weights);
  const std::vector<ExpertLayer> layers =
      compress::add_expert_taps(compress::graph_of(model), engine_options);
  const std::vector<double> weights = weights_of(layers, options.live);
  const int64_t need =
      options.starved_below > 0 ? options.starved_below : compress::columns_of_experts(layers);
  PairReader reader(layers);
  std::vector<WindowGift> gifts;
  int64_t pool = 0;
  const auto engine = Engine::load(model, engine_options);
  engine->set_tap_reader(&reader);
  const auto gift_of = [&](std::span<const int32_t> ids) {
    compress::run_text(*engine, ids);
    return reader.take(std::ssize(ids));
  };
  for (const std::vector<int32_t>& window : windows) {
    if (options.progress) options.progress(std::ssize(gifts), std::ssize(windows));
    gifts.push_back(gift_of(window));
    pool += std::ssize(window);
  }
  WindowChoice choice;
  choice.order = compress::greedy_cover(gifts, weights, need, options.tokens);
  std::vector<size_t> in_turn(windows.size());
  std::iota(in_turn.begin(), in_turn.end(), size_t{0});
  const auto told = [&](std::span<const size_t> order) {
    const auto cut = [&](size_t window, int64_t length) {
      return gift_of(std::span(windows[window]).first(static_cast<size_t>(length)));
    };
    return starved_of(compress::gifts_of(gifts, order, weights.size(), options.tokens, cut),
                      weights, need);
  };
  const auto [starved, share] = told(choice.order);
  const auto [starved_in_turn, share_in_turn] = told(in_turn);
  engine->set_tap_reader(nullptr);
  nlohmann::ordered_json record = {{"method", "greedy cover"},
                                   {"pool_windows", windows.size()},
                                   {"pool_tokens", pool},
                                   {"starved_below", need},
                                   {"experts", weights.size()},
                                   {"starved", starved},
                                   {"starved_in_turn", starved_in_turn},
                                   {"live", nullptr}};
  if (!options.live.routing.empty()) {
    nlohmann::ordered_json logs = nlohmann::ordered_json::array();
    for (const auto& [name, sha256] : options.live.logs) {
      logs.push_back({{"name", name}, {"sha256", sha256}});
    }
    record["live"] = {{"tokens", options.live.tokens},
                      {"logs", logs},
                      {"starved_share", share},
                      {"starved_share_in_turn", share_in_turn}};
  }
  choice.record = record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  return choice;
}

}  // namespace vitrine
