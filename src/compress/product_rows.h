// SPDX-License-Identifier: Apache-2.0
// Private to the room: products of rows with matrices of floats, by the engine's kernels.
#pragma once

#include <span>
#include <vector>

#include "hessian.h"

namespace vitrine::compress {

/// Returns `count` numbers spread evenly over those below `total`, all where there are fewer.
std::vector<int32_t> spread_rows(int64_t total, int64_t count);

/// Returns the products of the chosen rows with [width, rows.width] weights. The bits hang on no
/// number of threads (docs/numerics.md).
Rows product_rows(const Rows& rows, std::span<const int32_t> chosen, std::span<const float> weights,
                  int64_t width, int threads);

}  // namespace vitrine::compress
