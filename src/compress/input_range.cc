// SPDX-License-Identifier: Apache-2.0
#include "input_range.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "stored_form.h"

namespace vitrine::compress {
namespace {

/// These shares of the largest magnitude are tried.
constexpr float kRanges[] = {0.9f,  0.8f, 0.7f,  0.6f, 0.5f,  0.4f,  0.3f,
                             0.25f, 0.2f, 0.15f, 0.1f, 0.07f, 0.05f, 0.03f};
/// Rows of its own with which an expert's down has a range of its own.
constexpr size_t kOwnRows = 32;

/// How many magnitudes lie where, up to a largest one: a bin is at most a quarter of a step.
class Magnitudes {
 public:
  explicit Magnitudes(float largest)
      : largest_(largest), factor_(static_cast<float>(kBins - 1) / largest), bins_(kBins) {}

  void add(float size) {
    if (!(size <= largest_)) return;  // NaN
    Bin& bin = bins_[static_cast<size_t>(size * factor_)];
    bin.count += 1;
    bin.sum += size;
    bin.squares += static_cast<double>(size) * size;
  }

  float best_range() const {
    float best = largest_;
    double least = error_of(largest_);
    for (const float share : kRanges) {
      const double error = error_of(share * largest_);
      if (error >= least) continue;
      least = error;
      best = share * largest_;
    }
    return best;
  }

 private:
  static constexpr size_t kBins = 16384;
  struct Bin {
    double count = 0, sum = 0, squares = 0;
  };

  /// Returns the squared error of all magnitudes, each rounded as the mean of its bin is.
  double error_of(float range) const {
    const double scale = static_cast<double>(range) / kLargestInt8;
    double error = 0;
    for (const Bin& bin : bins_) {
      if (bin.count == 0) continue;
      const double step =
          std::min<double>(std::nearbyint(bin.sum / bin.count / scale), kLargestStep);
      const double value = step * scale;
      error += bin.squares - 2 * value * bin.sum + value * value * bin.count;
    }
    return error;
  }

  float largest_, factor_;
  std::vector<Bin> bins_;
};

/// Returns the largest of the magnitudes that `for_each` visits, or, for integers, the best range.
template <typename ForEach>
float range_of(const ForEach& for_each, bool is_integer) {
  float largest = 0;
  for_each([&](float size) { largest = std::max(largest, size); });
  if (!is_integer || largest == 0 || !std::isfinite(largest)) return largest;
  Magnitudes magnitudes(largest);
  for_each([&](float size) { magnitudes.add(size); });
  return magnitudes.best_range();
}

}  // namespace

float input_range(std::span<const float> values, NumberFormat format) {
  const auto for_each = [&](const auto& visit) {
    for (const float value : values) visit(std::fabs(value));
  };
  return range_of(for_each, format == NumberFormat::kInteger);
}

float InputRanges::of(const PlannedTensor& planned, const SiteMatrix& matrix) {
  if (planned.method->activations != ActivationUse::kStatic) return 0;
  const SiteRows& site = work_.site(matrix.site);
  const bool is_own = site.rows_per_token > 1 && matrix.expert >= 0 &&
                      rows_of(site, matrix.expert).size() >= kOwnRows;
  const int64_t expert = is_own ? matrix.expert : -1;
  const auto [found, is_new] = ranges_.try_emplace({matrix.site, expert});
  if (is_new) found->second = find(planned, matrix, expert);
  return found->second;
}

float InputRanges::find(const PlannedTensor& planned, const SiteMatrix& matrix,
                        int64_t expert) const {
  const Rows& rows = work_.site(matrix.site).rows;
  const Fold* fold = work_.folds().find(planned.source->name);
  const bool is_folded = fold != nullptr && !fold->columns.empty();
  const auto width = static_cast<size_t>(rows.width);
  const std::vector<int32_t> chosen = rows_of(work_.site(matrix.site), expert);
  const auto for_each = [&](const auto& visit) {
    for (const int32_t row : chosen) {
      const float* values = rows.values.data() + static_cast<size_t>(row) * width;
      for (size_t col = 0; col < width; ++col) {
        visit(std::fabs(values[col]) / (is_folded ? fold->columns[col] : 1.0f));
      }
    }
  };
  return range_of(for_each, planned.method->number_format == NumberFormat::kInteger);
}

}  // namespace vitrine::compress
