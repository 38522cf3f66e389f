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

void round_matrix(LayerWork& work, InputRanges& ranges, const SiteMatrix& matrix) {
  const PlannedTensor* planned = work.find(matrix.module);
  const SiteRows& site = work.site(matrix.site);
  if (planned == nullptr || site.rows.count() == 0) return;
  const std::vector<float> weights = work.weights(*planned);
  work.finish(*planned, weights, work.round(*planned, weights),
              {.rows_seen = std::ssize(rows_of(site, matrix.expert)),
               .input_range = ranges.of(*planned, matrix)});
}

void round_layer(LayerWork& work) {
  InputRanges ranges(work);
  for (const SiteMatrix& matrix : work.layer().matrices) round_matrix(work, ranges, matrix);
}

}  // namespace vitrine::compress
