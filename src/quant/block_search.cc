// SPDX-License-Identifier: Apache-2.0
#include "block_search.h"

namespace vitrine::quant {
namespace {

constexpr int kMostScale = 63;

float rounded_half(float value) { return f16_to_float(float_to_f16(value)); }

/// The weighted error of a group by whole numbers; writes the levels.
double group_error(std::span<const float> values, const float* weights, float scale, float minimum,
                   int levels, uint8_t* out) {
  double sum = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const int q = scale == 0 ? 0 : nearest_level((values[i] + minimum) / scale, 0, levels);
    const float off = scale * static_cast<float>(q) - minimum - values[i];
    sum += static_cast<double>(weights[i]) * off * off;
    out[i] = static_cast<uint8_t>(q);
  }
  return sum;
}

}  // namespace

AffineBlock choose_affine_block(const float* values, const float* importance, int levels) {
  constexpr int64_t kGroup = 32;
  std::array<float, 256> weights;
  error_weights(values, 256, importance, weights.data());
  std::array<AffineFit, 8> fits;
  float scale = 0, minimum = 0;
  for (size_t g = 0; g < 8; ++g) {
    fits[g] = fit_affine({values + g * kGroup, kGroup}, weights.data() + g * kGroup, levels);
    scale = std::max(scale, fits[g].scale);
    minimum = std::max(minimum, fits[g].minimum);
  }
  AffineBlock block;
  block.d = rounded_half(scale / kMostScale);
  block.dmin = rounded_half(minimum / kMostScale);
  const auto whole = [](float value, float unit) {
    return unit == 0 ? 0 : nearest_level(value / unit, 0, kMostScale);
  };
  for (size_t g = 0; g < 8; ++g) {
    const std::span<const float> group(values + g * kGroup, kGroup);
    const float* own = weights.data() + g * kGroup;
    const int near_scale = whole(fits[g].scale, block.d);
    const int near_minimum = whole(fits[g].minimum, block.dmin);
    double least = -1;
    // The nearest whole numbers, and their neighbours, which may suit the levels better.
    for (int s = std::max(0, near_scale - 1); s <= std::min(kMostScale, near_scale + 1); ++s) {
      for (int m = std::max(0, near_minimum - 1); m <= std::min(kMostScale, near_minimum + 1);
           ++m) {
        std::array<uint8_t, kGroup> found;
        const double error = group_error(group, own, block.d * static_cast<float>(s),
                                         block.dmin * static_cast<float>(m), levels, found.data());
        if (least >= 0 && error >= least) continue;
        least = error;
        block.scales[g] = s;
        block.minimums[g] = m;
        std::ranges::copy(found, block.levels.begin() + static_cast<ptrdiff_t>(g * kGroup));
      }
    }
  }
  return block;
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
