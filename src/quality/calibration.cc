// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <string>

#include "quality/distributions.h"
#include "vitrine/statistics.h"

namespace vitrine {

Calibration calibrate(std::span<const double> probabilities, std::span<const uint8_t> is_right,
                      size_t bins) {
  quality::require_pairs("probabilities", probabilities.size(), is_right.size());
  if (bins == 0) throw Error(ErrorKind::kInvalidArgument, "0 bins; expected at least 1");
  Calibration calibration{probabilities.size(), 0, 0, std::vector<ReliabilityBin>(bins)};
  const auto width = static_cast<double>(bins);
  for (size_t i = 0; i < bins; ++i) {
    calibration.bins[i].lower = static_cast<double>(i) / width;
    calibration.bins[i].upper = static_cast<double>(i + 1) / width;
  }
  for (size_t i = 0; i < probabilities.size(); ++i) {
    const double probability = probabilities[i];
    if (!(probability >= 0 && probability <= 1)) {
      throw Error(ErrorKind::kInvalidArgument,
                  "a probability of " + std::to_string(probability) + "; expected 0 to 1");
    }
    const double right = is_right[i] != 0 ? 1 : 0;
    calibration.brier += (probability - right) * (probability - right);
    const double place = std::max(0.0, std::ceil(probability * width) - 1);
    ReliabilityBin& bin = calibration.bins[std::min(bins - 1, static_cast<size_t>(place))];
    ++bin.count;
    bin.probability += probability;
    bin.share_right += right;
  }
  if (calibration.count == 0) return calibration;
  const auto count = static_cast<double>(calibration.count);
  calibration.brier /= count;
  for (ReliabilityBin& bin : calibration.bins) {
    if (bin.count == 0) continue;
    calibration.expected_error += std::abs(bin.probability - bin.share_right) / count;
    bin.probability /= static_cast<double>(bin.count);
    bin.share_right /= static_cast<double>(bin.count);
  }
  return calibration;
}

}  // namespace vitrine
