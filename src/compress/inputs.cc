// SPDX-License-Identifier: Apache-2.0
#include "inputs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "expert_inputs.h"
#include "product_rows.h"

namespace vitrine::compress {
namespace {

/// Rows of all tokens, for each column of a matrix, that are added to an expert's own
/// (docs/lab/compression.md).
constexpr int64_t kAddedRows = 3;
/// Rows of other tokens, for each column, that an expert's down is shown to average over, and own
/// rows with which it needs none.
constexpr int64_t kShownRows = 16;

Inputs sum_of(const Rows& rows, std::span<const int32_t> chosen, int threads) {
  Inputs inputs;
  inputs.width = rows.width;
  inputs.rows_seen = static_cast<int64_t>(chosen.size());
  if (inputs.rows_seen > 0) inputs.hessian = hessian(rows, chosen, threads);
  return inputs;
}

void shrink(Inputs& inputs, const Inputs& all) {
  const auto own = static_cast<double>(inputs.rows_seen);
  const auto lacked = static_cast<double>(kAddedRows * inputs.width);
  inputs.shrinkage = lacked / (lacked + own);
  const auto factor = static_cast<float>(lacked / static_cast<double>(all.rows_seen));
  for (size_t i = 0; i < inputs.hessian.size(); ++i) inputs.hessian[i] += factor * all.hessian[i];
}

/// What an expert's down meets of tokens whoever they are routed to.
Inputs inputs_of_others(const LayerWork& work, const SiteMatrix& matrix, const PlannedTensor& gate,
                        const PlannedTensor& up, int64_t width) {
  const Rows hidden =
      expert_hidden_rows(work.site(matrix.outer).rows, kShownRows * width, work.plain_weights(gate),
                         work.plain_weights(up), width, work.threads());
  return sum_of(hidden, spread_rows(hidden.count(), hidden.count()), work.threads());
}

}  // namespace

void for_each_inputs(LayerWork& work,
                     const std::function<void(std::span<const SiteMatrix* const> matrices,
                                              const Inputs& inputs)>& visit) {
  std::map<std::pair<size_t, int64_t>, std::vector<const SiteMatrix*>> groups;
  for (const SiteMatrix& matrix : work.layer().matrices) {
    if (work.find(matrix.module) != nullptr)
      groups[{matrix.site, matrix.expert}].push_back(&matrix);
  }
  std::map<size_t, Inputs> all;  // of all tokens, by place
  for (const auto& [key, matrices] : groups) {
    const SiteRows& site = work.site(key.first);
    const int64_t expert = key.second;
    Inputs inputs = sum_of(site.rows, rows_of(site, expert), work.threads());
    if (inputs.rows_seen == 0) continue;
    const PlannedTensor* gate = work.find(matrices.front()->gate);
    const PlannedTensor* up = work.find(matrices.front()->up);
    if (expert >= 0 && site.rows_per_token == 1) {
      Inputs& shared = all[key.first];
      if (shared.hessian.empty()) shared = sum_of(site.rows, rows_of(site, -1), work.threads());
      shrink(inputs, shared);
    } else if (expert >= 0 && inputs.rows_seen < kShownRows * inputs.width && gate != nullptr &&
               up != nullptr) {
      shrink(inputs, inputs_of_others(work, *matrices.front(), *gate, *up, inputs.width));
    }
    visit(matrices, inputs);
  }
}

void round_layer(LayerWork& work) {
  std::map<std::pair<size_t, int64_t>, float> ranges;  // all that reads a place has the same fold
  for (const SiteMatrix& matrix : work.layer().matrices) {
    const PlannedTensor* planned = work.find(matrix.module);
    const SiteRows& site = work.site(matrix.site);
    if (planned == nullptr || site.rows.count() == 0) continue;
    const int64_t expert = site.rows_per_token == 1 ? -1 : matrix.expert;
    const auto [found, is_new] = ranges.try_emplace({matrix.site, expert});
    if (is_new) found->second = input_range(work, *planned, matrix);
    const std::vector<float> weights = work.weights(*planned);
    work.finish(
        *planned, weights, work.round(*planned, weights),
        {.rows_seen = std::ssize(rows_of(site, matrix.expert)), .input_range = found->second});
  }
}

namespace {

/// What int8 numbers are to reach, as shares of the largest, and how many magnitudes say which.
constexpr float kRanges[] = {0.9f, 0.8f, 0.7f, 0.6f, 0.5f, 0.4f, 0.3f, 0.25f, 0.2f, 0.15f, 0.1f};
constexpr size_t kJudges = size_t{1} << 21;
/// Rows of its own with which an expert's down has a range of its own.
constexpr size_t kOwnRows = 32;
constexpr float kSteps = 127.5f, kLargestStep = 127.0f;

double squared_error(std::span<const float> sizes, float range) {
  const float scale = range / kSteps, factor = 1.0f / scale;
  double sum = 0;
  for (const float size : sizes) {
    const float error = size - scale * std::min(std::nearbyint(size * factor), kLargestStep);
    sum += static_cast<double>(error) * error;
  }
  return sum;
}

}  // namespace

float input_range(const LayerWork& work, const PlannedTensor& planned, const SiteMatrix& matrix) {
  if (planned.method->activations != ActivationUse::kStatic) return 0;
  const SiteRows& site = work.site(matrix.site);
  const Fold* fold = work.folds().find(planned.source->name);
  const bool is_folded = fold != nullptr && !fold->columns.empty();
  const auto width = static_cast<size_t>(site.rows.width);
  std::vector<int32_t> rows = rows_of(site, site.rows_per_token == 1 ? -1 : matrix.expert);
  if (rows.size() < kOwnRows) rows = rows_of(site, -1);
  const size_t step = rows.size() * width / kJudges + 1;
  std::vector<float> sizes;
  float largest = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    const float* row = site.rows.values.data() + static_cast<size_t>(rows[i]) * width;
    for (size_t col = 0; col < width; ++col) {
      const float size = std::fabs(row[col]) / (is_folded ? fold->columns[col] : 1.0f);
      largest = std::max(largest, size);
      if (i % step == 0) sizes.push_back(size);
    }
  }
  if (planned.method->number_format != NumberFormat::kInteger || largest == 0) return largest;
  float best = largest;
  double least = squared_error(sizes, largest);
  for (const float share : kRanges) {
    const double error = squared_error(sizes, share * largest);
    if (error >= least) continue;
    least = error;
    best = share * largest;
  }
  return best;
}

}  // namespace vitrine::compress
