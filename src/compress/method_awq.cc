// SPDX-License-Identifier: Apache-2.0
// The method awq (Lin et al. 2023, arXiv 2306.00978): channels that see large inputs are made
// larger before they are rounded, and what makes these inputs smaller by as much. How much is
// searched by what leaves the layer; of attention's output, an expert's down and a dense block's,
// by its own outputs. Then the extremes of each group are searched. Every reader of a norm takes
// part, the router too: else tokens would go to other experts.
#include <algorithm>
#include <cmath>

#include "core/run_pieces.h"
#include "inputs.h"
#include "norm_fold.h"
#include "product_rows.h"
#include "quant/round_to_nearest.h"

namespace vitrine::compress {
namespace {

constexpr int kRatioSteps = 20;         // 0, 0.05 … 0.95
constexpr int64_t kProbeTokens = 2048;  // by which ratios are searched
constexpr int64_t kDownRows = 256;      // by which those of a down are
constexpr int kClipSteps = 10;          // 1, 0.95 … 0.55
constexpr float kClipStep = 0.05f;
constexpr int64_t kClipPieceRows = 16;

/// Sums, for each column, |w| over the largest |w| of its row's group.
void add_relative_sizes(std::span<const float> weights, int64_t cols, int64_t group,
                        std::vector<double>& sums) {
  for (size_t first = 0; first < weights.size(); first += static_cast<size_t>(group)) {
    const std::span own = weights.subspan(first, static_cast<size_t>(group));
    float largest = 1e-6f;
    for (const float weight : own) largest = std::max(largest, std::fabs(weight));
    const auto column = static_cast<size_t>(static_cast<int64_t>(first) % cols);
    for (size_t i = 0; i < own.size(); ++i) sums[column + i] += std::fabs(own[i]) / largest;
  }
}

/// x^r / w^(1 - r), so that the largest and the smallest are each other's inverse.
std::vector<float> scales_of(std::span<const float> inputs, std::span<const float> weights,
                             float ratio) {
  std::vector<float> scales(inputs.size());
  float least = INFINITY, most = 0;
  for (size_t i = 0; i < scales.size(); ++i) {
    const float scale =
        std::pow(std::max(inputs[i], 1e-6f), ratio) / (std::pow(weights[i], 1.0f - ratio) + 1e-4f);
    scales[i] = std::max(scale, 1e-4f);
    least = std::min(least, scales[i]);
    most = std::max(most, scales[i]);
  }
  const float middle = std::sqrt(least * most);
  for (float& scale : scales) {
    scale /= middle;
    if (!std::isfinite(scale) || scale <= 0) scale = 1.0f;
  }
  return scales;
}

double mean_square_difference(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    sum += difference * difference;
  }
  return sum / static_cast<double>(std::max<size_t>(1, b.size()));
}

/// e H eᵀ over columns [first, first + size) of one row.
double group_loss(std::span<const float> errors, const Inputs& inputs, size_t first) {
  double sum = 0;
  const auto width = static_cast<size_t>(inputs.width);
  for (size_t i = 0; i < errors.size(); ++i) {
    if (errors[i] == 0) continue;
    const float* row = inputs.hessian.data() + (first + i) * width + first;
    float product = 0;
    for (size_t j = 0; j < errors.size(); ++j) product += row[j] * errors[j];
    sum += static_cast<double>(errors[i]) * product;
  }
  return sum;
}

class AwqMethod final : public LayerMethod {
 public:
  std::string_view obstacle(const QuantMethod& scheme) const override {
    return scheme.number_format == NumberFormat::kInteger && scheme.fixed_group == 0
               ? ""
               : "int8, int4 or int3";
  }

  void quantize(LayerWork& work) const override {
    for (const NormPlace& place : work.layer().norms) fold_best(work, place);
    fold_values(work);
    for (const SiteMatrix& matrix : work.layer().matrices) fold_down(work, matrix);
    for_each_inputs(work, [&](std::span<const SiteMatrix* const> matrices, const Inputs& inputs) {
      for (const SiteMatrix* matrix : matrices) clip_and_finish(work, *matrix, inputs);
    });
  }

 private:
  /// Folds the norm by the scales with which the layer, its readers quantized, changes least.
  static void fold_best(LayerWork& work, const NormPlace& place) {
    std::vector<const PlannedTensor*> readers;
    std::vector<std::vector<float>> weights;
    std::vector<double> sums;
    int64_t rows = 0;
    for (const std::string& module : place.readers) {
      const PlannedTensor* planned = work.find(module);
      if (planned == nullptr) continue;
      readers.push_back(planned);
      weights.push_back(work.plain_weights(*planned));
      const int64_t cols = planned->source->shape[1];
      sums.resize(static_cast<size_t>(cols), 0.0);
      rows += planned->source->shape[0];
      add_relative_sizes(weights.back(), cols, planned->group_size, sums);
    }
    const SiteRows& site = work.site(place.site);
    if (readers.empty() || site.rows.count() == 0) return;
    std::vector<float> sizes;
    for (const double sum : sums)
      sizes.push_back(static_cast<float>(sum / static_cast<double>(rows)));
    const std::vector<float> inputs = column_sizes(site).mean;

    std::vector<float> best;
    double least = INFINITY;
    for (int step = 0; step < kRatioSteps; ++step) {
      const std::vector<float> scales =
          step == 0 ? std::vector<float>(inputs.size(), 1.0f)
                    : scales_of(inputs, sizes, static_cast<float>(step) / kRatioSteps);
      for (size_t i = 0; i < readers.size(); ++i) try_scaled(work, *readers[i], weights[i], scales);
      const std::vector<float> result = work.probe(kProbeTokens);
      const double loss = mean_square_difference(work.result(), result);
      if (!(loss < least)) continue;
      least = loss;
      best = scales;
    }
    for (const PlannedTensor* reader : readers) work.restore(*reader);
    if (!best.empty()) fold_norm(work, place, best);
  }

  /// Folds the rows of an up into the columns of its down.
  static void fold_down(LayerWork& work, const SiteMatrix& matrix) {
    if (matrix.up.empty()) return;
    const SiteRows& site = work.site(matrix.site);
    const auto alone = [](std::vector<float>&) {};
    const std::vector<float> scales =
        best_columns(work, matrix.module, site.rows, rows_of(site, matrix.expert), alone);
    if (!scales.empty())
      work.folds().multiply_rows(matrix.up + std::string(kWeight), inverse(scales));
  }

  /// Folds the rows of an attention's values into the columns of its output. Heads that share
  /// values share their scales, too.
  static void fold_values(LayerWork& work) {
    if (!work.layer().values) return;
    const ValuePlace& place = *work.layer().values;
    const SiteRows& site = work.site(place.site);
    const auto share = [&](std::vector<float>& columns) { share_heads(place, columns); };
    const std::vector<float> scales =
        best_columns(work, place.output, site.rows, rows_of(site, -1), share);
    if (scales.empty()) return;
    std::vector<float> of_values;
    const auto head = static_cast<size_t>(place.head_size);
    for (size_t first = 0; first < scales.size();
         first += head * static_cast<size_t>(place.sharing)) {
      const auto own = std::span(scales).subspan(first, head);
      of_values.insert(of_values.end(), own.begin(), own.end());
    }
    const std::vector<float> divided = inverse(of_values);
    work.folds().multiply_rows(place.values + std::string(kWeight), divided);
    if (!place.bias.empty()) work.folds().multiply_rows(place.bias, divided);
  }

  /// Gives the same channel of heads that share values the mean of theirs.
  static void share_heads(const ValuePlace& place, std::vector<float>& columns) {
    const auto head = static_cast<size_t>(place.head_size);
    const auto sharing = static_cast<size_t>(place.sharing);
    for (size_t first = 0; first < columns.size(); first += head * sharing) {
      for (size_t i = first; i < first + head; ++i) {
        float sum = 0;
        for (size_t other = 0; other < sharing; ++other) sum += columns[i + other * head];
        for (size_t other = 0; other < sharing; ++other) {
          columns[i + other * head] = sum / static_cast<float>(sharing);
        }
      }
    }
  }

  static std::vector<float> inverse(std::span<const float> scales) {
    std::vector<float> divided;
    for (const float scale : scales) divided.push_back(1.0f / scale);
    return divided;
  }

  /// Multiplies a matrix's columns by the scales with which its own outputs change least, and
  /// returns them; empty where it stays. `share` makes those equal that must be.
  template <typename Share>
  static std::vector<float> best_columns(LayerWork& work, const std::string& module,
                                         const Rows& site, std::span<const int32_t> rows,
                                         const Share& share) {
    const PlannedTensor* planned = work.find(module);
    if (planned == nullptr || rows.empty()) return {};
    std::vector<int32_t> sample;
    for (const int32_t i : spread_rows(std::ssize(rows), kDownRows)) {
      sample.push_back(rows[static_cast<size_t>(i)]);
    }
    const std::vector<float> weights = work.plain_weights(*planned);
    const int64_t outputs = planned->source->shape[0], cols = planned->source->shape[1];
    std::vector<double> sums(static_cast<size_t>(cols), 0.0);
    add_relative_sizes(weights, cols, planned->group_size, sums);
    std::vector<float> sizes, inputs(sums.size(), 0.0f);
    for (const double sum : sums) {
      sizes.push_back(static_cast<float>(sum / static_cast<double>(outputs)));
    }
    for (const int32_t row : sample) {
      const float* values = site.row(row);
      for (size_t i = 0; i < inputs.size(); ++i) inputs[i] += std::fabs(values[i]);
    }
    share(sizes);
    share(inputs);
    std::vector<float> best;
    double least = INFINITY;
    for (int step = 0; step < kRatioSteps; ++step) {
      Fold fold;
      fold.columns = step == 0 ? std::vector<float>(inputs.size(), 1.0f)
                               : scales_of(inputs, sizes, static_cast<float>(step) / kRatioSteps);
      std::vector<float> errors = weights;
      apply_fold(fold, 0, cols, errors);
      errors = dequantize_matrix(work.round(*planned, errors));
      undo_fold(fold, cols, errors);
      for (size_t i = 0; i < errors.size(); ++i) errors[i] -= weights[i];
      const Rows wrong = product_rows(site, sample, errors, outputs, work.threads());
      double loss = 0;
      for (const float value : wrong.values) loss += static_cast<double>(value) * value;
      if (!(loss < least)) continue;
      least = loss;
      best = std::move(fold.columns);
    }
    if (!best.empty()) work.folds().multiply_columns(planned->source->name, best);
    return best;
  }

  static void try_scaled(LayerWork& work, const PlannedTensor& planned,
                         std::span<const float> weights, std::span<const float> scales) {
    std::vector<float> scaled(weights.begin(), weights.end());
    Fold fold;
    fold.columns.assign(scales.begin(), scales.end());
    apply_fold(fold, 0, std::ssize(scales), scaled);
    work.try_out(planned, work.round(planned, scaled), &fold);
  }

  /// Searches each group's extremes by the outputs of the group. Queries and keys stay: what they
  /// make meets a softmax, and what few of their weights make is what it goes by.
  static void clip_and_finish(LayerWork& work, const SiteMatrix& matrix, const Inputs& inputs) {
    const PlannedTensor& planned = *work.find(matrix.module);
    const std::vector<float> weights = work.weights(planned);
    std::vector<float> clipped = weights;
    if (!matrix.makes_scores) clip(work, planned, folded_inputs(work, planned, inputs), clipped);
    work.finish(planned, weights, work.round(planned, clipped),
                {.rows_seen = inputs.rows_seen, .shrinkage = inputs.shrinkage});
  }

  /// The products of rows whose channels were divided as the matrix's columns were multiplied.
  static Inputs folded_inputs(const LayerWork& work, const PlannedTensor& planned,
                              const Inputs& inputs) {
    const Fold* fold = work.folds().find(planned.source->name);
    Inputs folded = inputs;
    if (fold == nullptr || fold->columns.empty()) return folded;
    const auto width = static_cast<size_t>(inputs.width);
    for (size_t i = 0; i < width; ++i) {
      for (size_t j = 0; j < width; ++j) {
        folded.hessian[i * width + j] /= fold->columns[i] * fold->columns[j];
      }
    }
    return folded;
  }

  static void clip(const LayerWork& work, const PlannedTensor& planned, const Inputs& inputs,
                   std::vector<float>& weights) {
    const int64_t rows = planned.source->shape[0], cols = planned.source->shape[1];
    const int64_t group = planned.group_size;
    const auto clip_rows = [&](size_t piece) {
      const int64_t first_row = static_cast<int64_t>(piece) * kClipPieceRows;
      const int64_t last_row = std::min(rows, first_row + kClipPieceRows);
      for (int64_t at = first_row * cols; at < last_row * cols; at += group) {
        clip_group(planned, inputs, static_cast<size_t>(at % cols),
                   std::span(weights).subspan(static_cast<size_t>(at), static_cast<size_t>(group)));
      }
    };
    core::run_pieces(work.threads(),
                     static_cast<size_t>((rows + kClipPieceRows - 1) / kClipPieceRows),
                     [&] { return clip_rows; });
  }

  static void clip_group(const PlannedTensor& planned, const Inputs& inputs, size_t column,
                         std::span<float> weights) {
    const auto size = static_cast<int64_t>(weights.size());
    float largest = 0;
    for (const float weight : weights) largest = std::max(largest, std::fabs(weight));
    std::vector<float> tried(weights.begin(), weights.end()), best = tried, errors(tried.size());
    double least = INFINITY;
    for (int step = 0; step < kClipSteps; ++step) {
      const float limit = quant::round_to_dtype(
          largest * (1.0f - kClipStep * static_cast<float>(step)), planned.dtype);
      for (size_t i = 0; i < tried.size(); ++i) tried[i] = std::clamp(weights[i], -limit, limit);
      const QuantizedMatrix matrix =
          planned.method->quantize(tried, 1, size, DType::kF32, planned.group_size);
      const std::vector<float> values = dequantize_matrix(matrix);
      for (size_t i = 0; i < errors.size(); ++i) errors[i] = weights[i] - values[i];
      const double loss = group_loss(errors, inputs, column);
      if (!(loss < least)) continue;
      least = loss;
      best = tried;
    }
    std::ranges::copy(best, weights.begin());
  }
};

const AwqMethod kAwqMethod;
const LayerMethodRegistration kAwqRegistration("awq", kAwqMethod);

}  // namespace
}  // namespace vitrine::compress
