// SPDX-License-Identifier: Apache-2.0
#include "rounding.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "vitrine/ledger.h"

namespace vitrine::ledger {
namespace {

/// Adds 1 to the `count` amounts with the largest fractions.
template <typename Fraction>
void add_to_largest(int64_t count, const std::vector<Fraction>& fractions,
                    std::vector<int64_t>& amounts) {
  std::vector<size_t> order(fractions.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return fractions[a] > fractions[b]; });
  for (int64_t i = 0; i < count; ++i) {
    ++amounts[order[static_cast<size_t>(i) % order.size()]];
  }
}

}  // namespace

std::vector<int64_t> round_together(std::span<const Wide> numerators, Wide denominator) {
  std::vector<int64_t> amounts;
  std::vector<Wide> remainders;
  Wide sum = 0, whole = 0;
  for (const Wide numerator : numerators) {
    sum += numerator;
    whole += numerator / denominator;
    amounts.push_back(static_cast<int64_t>(numerator / denominator));
    remainders.push_back(numerator % denominator);
  }
  const Wide total = (2 * sum + denominator) / (2 * denominator);
  add_to_largest(static_cast<int64_t>(total - whole), remainders, amounts);
  return amounts;
}

std::vector<int64_t> share_units(std::span<const double> weights) {
  std::vector<int64_t> units(weights.size(), 0);
  double sum = 0;
  for (const double weight : weights) sum += weight;
  if (!(sum > 0)) return units;
  std::vector<double> fractions;
  int64_t left = kShareUnits;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double exact = weights[i] / sum * static_cast<double>(kShareUnits);
    const double whole = std::floor(exact);
    units[i] = static_cast<int64_t>(whole);
    left -= units[i];
    fractions.push_back(exact - whole);
  }
  // Rounding can make the whole parts one too many in all: then the smallest fractions give.
  for (size_t i = 0; left < 0; i = (i + 1) % units.size()) {
    if (units[i] == 0) continue;
    --units[i];
    ++left;
  }
  add_to_largest(left, fractions, units);
  return units;
}

}  // namespace vitrine::ledger
