// SPDX-License-Identifier: Apache-2.0
// Private to the room: rounding that loses nothing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vitrine::ledger {

__extension__ using Wide = __int128;

/// Numerators (0 or more) over one denominator, as integers that sum to their sum rounded to the
/// nearest (halves up): each is rounded down, and what is missing goes to the largest fractions,
/// ties to the first (Hamilton's method of apportionment).
std::vector<int64_t> round_together(std::span<const Wide> numerators, Wide denominator);

/// Weights (finite, 0 or more) as units of kShareUnits that sum to exactly that; all 0 where the
/// weights are. In double: weight / sum * 1e9, sums in order, fractions as above.
std::vector<int64_t> share_units(std::span<const double> weights);

}  // namespace vitrine::ledger
