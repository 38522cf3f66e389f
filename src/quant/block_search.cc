// SPDX-License-Identifier: Apache-2.0
#include "block_search.h"

namespace vitrine::quant {
namespace {

/// Finds the unit of whole numbers from 0 to `most` that wanted values are multiples of, by the
/// least weighted sum of squares.
float fit_unit(std::span<const float> wanted, std::span<const double> weights, int most) {
  constexpr int kFirst = -24, kLast = 12;
  constexpr float kStep = 0.1F;  // of a whole number that the largest value becomes
  const float largest = *std::ranges::max_element(wanted);
  if (!(largest > 0)) return 0;
  double best_gain = -1;
  float best = 0;
  for (int trial = kFirst; trial <= kLast; ++trial) {
    const float inverse = (static_cast<float>(most) + kStep * static_cast<float>(trial)) / largest;
    double wtn = 0, wnn = 0;
    for (size_t g = 0; g < wanted.size(); ++g) {
      const double n = nearest_level(wanted[g] * inverse, 0, most);
      wtn += weights[g] * n * wanted[g];
      wnn += weights[g] * n * n;
    }
    if (!(wtn * wtn > best_gain * wnn)) continue;
    best_gain = wtn * wtn / wnn;
    best = static_cast<float>(wtn / wnn);
  }
  return best;
}

class AffineChooser {
 public:
  AffineChooser(const float* values, const float* importance, const AffineShape& shape)
      : values_(values), shape_(shape), groups_(256 / shape.width) {
    error_weights(values, 256, importance, weights_.data());
  }

  AffineBlock run() {
    constexpr int kTurns = 3;
    AffineBlock best = first_units();
    double least = choose_numbers(best);
    // The units that suit the numbers best, then the numbers that suit these.
    for (int turn = 0; turn < kTurns; ++turn) {
      AffineBlock next;
      if (!fit_units(best, next)) break;
      const double error = choose_numbers(next);
      if (!(error < least)) break;
      least = error;
      best = next;
    }
    return best;
  }

 private:
  std::span<const float> group(size_t g) const {
    return {values_ + g * shape_.width, shape_.width};
  }
  const float* weights(size_t g) const { return weights_.data() + g * shape_.width; }

  AffineBlock first_units() {
    std::array<float, 16> scales{}, minimums{};
    std::array<double, 16> of_scale{}, of_minimum{};
    for (size_t g = 0; g < groups_; ++g) {
      fits_[g] = fit_affine(group(g), weights(g), shape_.levels);
      scales[g] = fits_[g].scale;
      minimums[g] = fits_[g].minimum;
      for (size_t i = 0; i < shape_.width; ++i) {
        of_scale[g] += weights(g)[i];
        of_minimum[g] += weights(g)[i];
      }
    }
    AffineBlock block;
    block.d =
        rounded_half(fit_unit({scales.data(), groups_}, {of_scale.data(), groups_}, shape_.most));
    block.dmin = rounded_half(
        fit_unit({minimums.data(), groups_}, {of_minimum.data(), groups_}, shape_.most));
    return block;
  }

  /// Chooses the whole numbers and levels under a block's units; returns the error.
  double choose_numbers(AffineBlock& block) const {
    const auto whole = [&](float value, float unit) {
      return unit == 0 ? 0 : nearest_level(value / unit, 0, shape_.most);
    };
    double sum = 0;
    for (size_t g = 0; g < groups_; ++g) {
      const int near_scale = whole(fits_[g].scale, block.d);
      const int near_minimum = whole(fits_[g].minimum, block.dmin);
      double least = -1;
      // The nearest whole numbers, and their neighbours, which may suit the levels better.
      for (int s = std::max(0, near_scale - 1); s <= std::min(shape_.most, near_scale + 1); ++s) {
        for (int m = std::max(0, near_minimum - 1); m <= std::min(shape_.most, near_minimum + 1);
             ++m) {
          const double error = affine_error(
              group(g), weights(g),
              {block.d * static_cast<float>(s), block.dmin * static_cast<float>(m)}, shape_.levels);
          if (least >= 0 && error >= least) continue;
          least = error;
          block.scales[g] = s;
          block.minimums[g] = m;
        }
      }
      affine_levels(group(g), chosen_fit(block, g), shape_.levels,
                    block.levels.data() + g * shape_.width);
      sum += least;
    }
    return sum;
  }

  static AffineFit chosen_fit(const AffineBlock& block, size_t g) {
    return {block.d * static_cast<float>(block.scales[g]),
            block.dmin * static_cast<float>(block.minimums[g])};
  }

  /// Fits both units to the whole numbers and levels of a block; false: nothing to fit.
  bool fit_units(const AffineBlock& block, AffineBlock& next) const {
    double aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;
    for (size_t g = 0; g < groups_; ++g) {
      const double minimum = block.minimums[g];
      for (size_t i = 0; i < shape_.width; ++i) {
        const double weight = weights(g)[i];
        const double value = values_[g * shape_.width + i];
        const double level = block.scales[g] * block.levels[g * shape_.width + i];
        aa += weight * level * level;
        ab += weight * level * minimum;
        bb += weight * minimum * minimum;
        xa += weight * value * level;
        xb += weight * value * minimum;
      }
    }
    if (aa <= 0) return false;
    const double determinant = aa * bb - ab * ab;
    double d = xa / aa, dmin = 0;
    if (determinant > 0) {
      d = (xa * bb - xb * ab) / determinant;
      dmin = (xa * ab - xb * aa) / determinant;
    }
    if (!(d > 0) || !(dmin >= 0)) return false;
    next.d = rounded_half(static_cast<float>(d));
    next.dmin = rounded_half(static_cast<float>(dmin));
    return next.d != block.d || next.dmin != block.dmin;
  }

  const float* values_;
  const AffineShape& shape_;
  size_t groups_;
  std::array<float, 256> weights_;
  std::array<AffineFit, 16> fits_{};
};

}  // namespace

AffineBlock choose_affine_block(const float* values, const float* importance,
                                const AffineShape& shape) {
  return AffineChooser(values, importance, shape).run();
}

void put_affine_head(const AffineBlock& block, std::byte* out) {
  put_half(block.d, out);
  put_half(block.dmin, out + 2);
  std::array<uint8_t, 12> bytes{};
  for (size_t g = 0; g < 8; ++g) {
    const int scale = block.scales[g], minimum = block.minimums[g];
    if (g < 4) {
      bytes[g] = static_cast<uint8_t>(bytes[g] | scale);
      bytes[g + 4] = static_cast<uint8_t>(bytes[g + 4] | minimum);
    } else {
      bytes[g + 4] = static_cast<uint8_t>((scale & 15) | (minimum & 15) << 4);
      bytes[g - 4] = static_cast<uint8_t>(bytes[g - 4] | scale >> 4 << 6);
      bytes[g] = static_cast<uint8_t>(bytes[g] | minimum >> 4 << 6);
    }
  }
  for (size_t i = 0; i < bytes.size(); ++i) out[4 + i] = static_cast<std::byte>(bytes[i]);
}

}  // namespace vitrine::quant
