// SPDX-License-Identifier: Apache-2.0
// Private to the room: what an expert's down would be multiplied with, had other tokens come to it.
#pragma once

#include <span>

#include "hessian.h"

namespace vitrine::compress {

/// Returns silu(gate . x) * (up . x) for `count` rows x spread evenly over `rows`, all where there
/// are fewer. `gate` and `up`: [width, rows.width]. The bits hang on no number of threads.
Rows expert_hidden_rows(const Rows& rows, int64_t count, std::span<const float> gate,
                        std::span<const float> up, int64_t width, int threads);

}  // namespace vitrine::compress
