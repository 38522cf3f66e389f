// SPDX-License-Identifier: Apache-2.0
// Private to the room: a norm's channels divided, and all its readers' columns multiplied.
#pragma once

#include <span>
#include <vector>

#include "layer_method.h"

namespace vitrine::compress {

/// Divides the norm's channels by `scales` and multiplies the columns of all that reads it, routers
/// and a shared expert's gate included. The norm's dtype rounds the quotients; the columns are
/// multiplied with what came of that, so that nothing but the readers' own rounding is left. A
/// channel whose norm is 0 stays. Throws what reading the norm throws.
void fold_norm(LayerWork& work, const NormPlace& place, std::span<const float> scales);

/// Returns, for each column of a site, the largest magnitude and the mean one.
struct ColumnSizes {
  std::vector<float> largest, mean;
};
ColumnSizes column_sizes(const SiteRows& site);

}  // namespace vitrine::compress
