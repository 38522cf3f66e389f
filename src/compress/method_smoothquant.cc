// SPDX-License-Identifier: Apache-2.0
// The method smoothquant (Xiao et al. 2022, arXiv 2211.10438), for activations of 8 bits: a norm's
// channels that become large are made smaller, and the columns that meet them larger, by
// s = max|x|^a / max|w|^(1 - a). Which a, and whether a norm is folded at all, is what loses least
// of its readers' products, their inputs and weights rounded.
#include <algorithm>
#include <cmath>

#include "inputs.h"
#include "norm_fold.h"
#include "product_rows.h"
#include "stored_form.h"

namespace vitrine::compress {
namespace {

constexpr int64_t kSampleRows = 256;  // of those that a matrix meets
constexpr float kLeastSize = 1e-5f;

/// Rounds rows to 8 bits, each with its own scale, or all with one.
void round_rows(Rows& rows, ActivationUse use, NumberFormat format) {
  const bool is_float = format == NumberFormat::kE4M3;
  const bool is_static = use == ActivationUse::kStatic;
  const float most = is_float ? kLargestE4M3 : is_static ? kLargestInt8 : kLargestStep;
  const float range_of_all = is_static ? input_range(rows.values, format) : 0;
  for (int64_t row = 0; row < rows.count(); ++row) {
    float* values = rows.values.data() + row * rows.width;
    float range = range_of_all;
    for (int64_t i = 0; !is_static && i < rows.width; ++i) {
      range = std::max(range, std::fabs(values[i]));
    }
    if (range == 0) continue;
    const float scale = range / most;
    for (int64_t i = 0; i < rows.width; ++i) {
      const float scaled = values[i] / scale;
      values[i] =
          scale * (is_float ? e4m3_to_float(float_to_e4m3(scaled))
                            : std::clamp(std::nearbyint(scaled), -kLargestStep, kLargestStep));
    }
  }
}

/// A reader of a norm: its weights, and those of the norm's rows that it meets.
struct Reader {
  const PlannedTensor* planned = nullptr;
  std::vector<float> weights;
  Rows inputs;   // a sample
  Rows outputs;  // of these, by floats
};

class SmoothQuantMethod final : public LayerMethod {
 public:
  std::string_view obstacle(const QuantMethod& scheme) const override {
    return scheme.activations == ActivationUse::kFloat
               ? "int8-w8a8, int8-w8a8-static, fp8-dynamic or fp8-static"
               : "";
  }

  void quantize(LayerWork& work) const override {
    for (const NormPlace& place : work.layer().norms) smooth(work, place);
    round_layer(work);
  }

 private:
  static std::vector<Reader> find_readers(const LayerWork& work, const NormPlace& place) {
    std::vector<Reader> readers;
    for (const SiteMatrix& matrix : work.layer().matrices) {
      const PlannedTensor* planned = work.find(matrix.module);
      const bool reads = std::ranges::find(place.readers, matrix.module) != place.readers.end();
      if (planned == nullptr || !reads) continue;
      const SiteRows& site = work.site(matrix.site);
      const std::vector<int32_t> rows = rows_of(site, matrix.expert);
      Reader reader;
      reader.planned = planned;
      reader.weights = work.plain_weights(*planned);
      reader.inputs.width = site.rows.width;
      for (const int32_t i : spread_rows(std::ssize(rows), kSampleRows)) {
        const float* row = site.rows.row(rows[static_cast<size_t>(i)]);
        reader.inputs.values.insert(reader.inputs.values.end(), row, row + site.rows.width);
      }
      reader.outputs = product_rows(reader.inputs, all_of(reader.inputs), reader.weights,
                                    planned->source->shape[0], work.threads());
      readers.push_back(std::move(reader));
    }
    return readers;
  }

  static std::vector<int32_t> all_of(const Rows& rows) {
    return spread_rows(rows.count(), rows.count());
  }

  static void smooth(LayerWork& work, const NormPlace& place) {
    const std::vector<Reader> readers = find_readers(work, place);
    const SiteRows& site = work.site(place.site);
    if (readers.empty() || site.rows.count() == 0) return;
    const std::vector<float> inputs = column_sizes(site).largest;
    std::vector<float> columns(inputs.size(), kLeastSize);
    for (const Reader& reader : readers) {
      for (size_t i = 0; i < reader.weights.size(); ++i) {
        float& column = columns[i % columns.size()];
        column = std::max(column, std::fabs(reader.weights[i]));
      }
    }
    std::vector<float> ratios = {0.5f, 0.4f, 0.6f, 0.7f, 0.8f, 0.9f};
    if (work.options().smoothing > 0) ratios = {static_cast<float>(work.options().smoothing)};
    double least = loss_of(work, readers, std::vector<float>(inputs.size(), 1.0f));
    std::vector<float> best;
    for (const float ratio : ratios) {
      std::vector<float> scales;
      for (size_t i = 0; i < inputs.size(); ++i) {
        scales.push_back(std::max(kLeastSize, std::pow(std::max(inputs[i], kLeastSize), ratio) /
                                                  std::pow(columns[i], 1.0f - ratio)));
      }
      const double loss = loss_of(work, readers, scales);
      if (!(loss < least)) continue;
      least = loss;
      best = std::move(scales);
    }
    if (!best.empty()) fold_norm(work, place, best);
  }

  /// The squared errors of the readers' products, each reader's relative to its products.
  static double loss_of(const LayerWork& work, std::span<const Reader> readers,
                        const std::vector<float>& scales) {
    Fold larger, smaller;
    larger.columns = scales;
    for (const float scale : scales) smaller.columns.push_back(1.0f / scale);
    double sum = 0;
    for (const Reader& reader : readers) {
      if (reader.inputs.count() == 0) continue;
      std::vector<float> weights = reader.weights;
      apply_fold(larger, 0, reader.inputs.width, weights);
      weights = dequantize_matrix(work.round(*reader.planned, weights));
      Rows inputs = reader.inputs;
      apply_fold(smaller, 0, inputs.width, inputs.values);
      const QuantMethod& method = *reader.planned->method;
      round_rows(inputs, method.activations, method.number_format);
      const Rows outputs = product_rows(inputs, all_of(inputs), weights,
                                        reader.planned->source->shape[0], work.threads());
      double wrong = 0, all = 0;
      for (size_t i = 0; i < outputs.values.size(); ++i) {
        const double plain = reader.outputs.values[i], error = outputs.values[i] - plain;
        wrong += error * error;
        all += plain * plain;
      }
      if (all > 0) sum += wrong / all;
    }
    return sum;
  }
};

const SmoothQuantMethod kSmoothQuantMethod;
const LayerMethodRegistration kSmoothQuantRegistration("smoothquant", kSmoothQuantMethod);

}  // namespace
}  // namespace vitrine::compress
