// SPDX-License-Identifier: Apache-2.0
#include "norm_fold.h"

#include <algorithm>
#include <cmath>

#include "model/named_vector.h"
#include "quant/round_to_nearest.h"

namespace vitrine::compress {
void fold_norm(LayerWork& work, const NormPlace& place, std::span<const float> scales) {
  const model::NamedVector norm =
      model::find_named_vector(work.checkpoint(), place.norm, std::ssize(scales));
  const std::vector<float> values = model::read_named_vector(work.checkpoint(), norm);
  const float one = norm.adds_one ? 1.0f : 0.0f;
  std::vector<float> divided(scales.size(), 1.0f), multiplied(scales.size(), 1.0f);
  for (size_t i = 0; i < scales.size(); ++i) {
    const float left = quant::round_to_dtype(values[i] / scales[i] - one, norm.info->dtype) + one;
    const float taken = values[i] / left;
    if (values[i] == 0 || !std::isfinite(taken) || taken <= 0) continue;
    divided[i] = left / values[i];
    multiplied[i] = taken;
  }
  Folds& folds = work.folds();
  folds.multiply_rows(norm.info->name, divided);
  if (norm.adds_one) folds.add_one(norm.info->name);
  for (const auto* readers : {&place.readers, &place.float_readers}) {
    for (const std::string& module : *readers) {
      folds.multiply_columns(module + std::string(kWeight), multiplied);
    }
  }
}

ColumnSizes column_sizes(const SiteRows& site) {
  const auto width = static_cast<size_t>(site.rows.width);
  ColumnSizes sizes{std::vector<float>(width, 0.0f), std::vector<float>(width, 0.0f)};
  std::vector<double> sums(width, 0.0);
  for (int64_t row = 0; row < site.rows.count(); ++row) {
    const float* values = site.rows.row(row);
    for (size_t i = 0; i < width; ++i) {
      const float magnitude = std::fabs(values[i]);
      sizes.largest[i] = std::max(sizes.largest[i], magnitude);
      sums[i] += magnitude;
    }
  }
  for (size_t i = 0; i < width; ++i) {
    sizes.mean[i] = static_cast<float>(sums[i] / static_cast<double>(site.rows.count()));
  }
  return sizes;
}

}  // namespace vitrine::compress
