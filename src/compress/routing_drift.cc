// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numbers>

#include "vitrine/calibration_cover.h"

namespace vitrine {
namespace {

double sum_of(const std::vector<int64_t>& counts) {
  double sum = 0;
  for (const int64_t count : counts) sum += static_cast<double>(count);
  return sum;
}

LayerDrift drift_of(const LayerRouting& calibration, const LayerRouting& live) {
  const double left = sum_of(calibration.tokens), right = sum_of(live.tokens);
  if (left <= 0 || right <= 0) {
    throw Error(ErrorKind::kInvalidArgument,
                "layer " + std::to_string(calibration.layer) + " has no tokens in " +
                    (left <= 0 ? "the calibration" : "the logs") + "; expected some in both");
  }
  const auto part = [](double share, double mean) {
    return share > 0 ? share * std::log2(share / mean) : 0.0;
  };
  LayerDrift drift;
  drift.layer = calibration.layer;
  int used = 0;
  for (size_t e = 0; e < calibration.tokens.size(); ++e) {
    const double p = static_cast<double>(calibration.tokens[e]) / left;
    const double q = static_cast<double>(live.tokens[e]) / right;
    if (p + q <= 0) continue;
    ++used;
    drift.divergence += (part(p, (p + q) / 2) + part(q, (p + q) / 2)) / 2;
  }
  drift.divergence = std::clamp(drift.divergence, 0.0, 1.0);
  // A small divergence is sum (p - q)² / (8 m) nats, and both are samples.
  drift.by_chance = (used - 1) * (1 / left + 1 / right) / (8 * std::numbers::ln2);
  return drift;
}

}  // namespace

std::vector<LayerDrift> routing_drift(const std::vector<LayerRouting>& calibration,
                                      const std::vector<LayerRouting>& live) {
  const auto is_same = [](const LayerRouting& a, const LayerRouting& b) {
    return a.layer == b.layer && a.tokens.size() == b.tokens.size();
  };
  if (calibration.empty() || !std::ranges::equal(calibration, live, is_same)) {
    throw Error(ErrorKind::kInvalidArgument,
                calibration.empty()
                    ? "the calibration is of a model without experts; expected some"
                    : "calibration and logs are of models with other layers or experts; expected "
                      "those of one model");
  }
  std::vector<LayerDrift> drift;
  for (size_t i = 0; i < calibration.size(); ++i) {
    drift.push_back(drift_of(calibration[i], live[i]));
  }
  return drift;
}

}  // namespace vitrine
