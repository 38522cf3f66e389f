// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>

#include "gates/log_records.h"

namespace vitrine {

namespace {

constexpr size_t kLeastTokens = 20;  // of a place that is told

/// Rounding moves equal values only where they stand at an edge: the mean is a small part of the
/// largest.
constexpr double kMeanRounding = 1.0 / 16;

/// The order of computation: what is outside of the layers comes last.
auto order_of(const DeviationCell& cell) {
  return std::tuple(cell.layer < 0, cell.layer, cell.probe);
}

}  // namespace

void DeviationProfile::add(const std::string& baseline_log, const std::string& other_log,
                           const std::optional<SealKey>& reader) {
  const gates::ItemRun a = gates::read_run(baseline_log, reader);
  const gates::ItemRun b = gates::read_run(other_log, reader);
  for (size_t i = 0; i < std::min(a.records.size(), b.records.size()); ++i) {
    const TokenRecord &left = a.records[i], &right = b.records[i];
    if (left.position != right.position || left.token != right.token) return;
    ++num_tokens_;
    gates::compare_records(
        left, right, [&](int32_t layer, PartingProbe probe, const gates::Difference& difference) {
          const int32_t expert = probe == PartingProbe::kExpertOutput ? difference.expert : -1;
          Sum& sum = sums_[{layer, probe, expert}];
          sum.total += difference.value;
          double& largest = largest_[{layer, probe}];
          largest = std::max(largest, difference.value);
          ++sum.count;
          return true;
        });
  }
}

double DeviationProfile::largest(int32_t layer, PartingProbe probe) const {
  const auto found = largest_.find({layer, probe});
  return std::max(gates::rounding_of(probe), found == largest_.end() ? 0 : found->second);
}

std::vector<DeviationCell> DeviationProfile::cells(const DeviationProfile& noise) const {
  std::vector<DeviationCell> cells;
  for (const auto& [place, sum] : sums_) {
    if (sum.count < kLeastTokens) continue;
    DeviationCell cell;
    std::tie(cell.layer, cell.probe, cell.expert) = place;
    cell.count = sum.count;
    cell.mean = sum.total / static_cast<double>(sum.count);
    cell.noise = kMeanRounding * gates::rounding_of(cell.probe);
    const auto found = noise.sums_.find(place);
    if (found != noise.sums_.end() && found->second.count >= kLeastTokens) {
      const Sum& other = found->second;
      cell.noise = std::max(cell.noise, other.total / static_cast<double>(other.count));
    }
    cell.ratio = cell.mean / cell.noise;
    cells.push_back(cell);
  }
  std::ranges::stable_sort(cells, {}, order_of);
  return cells;
}

std::optional<DeviationCell> first_deviation(const DeviationProfile& candidate,
                                             const DeviationProfile& noise, double factor) {
  std::optional<DeviationCell> first;
  for (const DeviationCell& cell : candidate.cells(noise)) {
    if (first && order_of(cell) != order_of(*first)) break;
    if (cell.ratio > factor && (!first || cell.ratio > first->ratio)) first = cell;
  }
  return first;
}

std::string deviation_text(const DeviationCell& cell) {
  char numbers[96];
  std::snprintf(numbers, sizeof numbers,
                " differs by %.3g in the mean of %zu tokens, noise by %.3g", cell.mean, cell.count,
                cell.noise);
  std::string place = cell.layer < 0 ? "the output" : "layer " + std::to_string(cell.layer);
  if (cell.expert >= 0) place += ", expert " + std::to_string(cell.expert);
  return place + ": " + std::string(parting_probe_name(cell.probe)) + numbers;
}

}  // namespace vitrine
