// SPDX-License-Identifier: Apache-2.0
#include "layer_method.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/registry.h"
#include "core/run_pieces.h"
#include "source_rows.h"

namespace vitrine::compress {
namespace {

constexpr int64_t kRoundedRows = 64;  // of a matrix, which one thread rounds

struct NamedMethod {
  std::string name;
  const LayerMethod* method = nullptr;
};

core::Registry<std::string, NamedMethod>& registered_layer_methods() {
  static core::Registry<std::string, NamedMethod> methods("method");
  return methods;
}

}  // namespace

LayerMethodRegistration::LayerMethodRegistration(std::string_view name, const LayerMethod& method) {
  registered_layer_methods().add(std::string(name), {std::string(name), &method});
}

const LayerMethod& find_layer_method(std::string_view name) {
  if (const NamedMethod* found = registered_layer_methods().find(name)) return *found->method;
  std::string known;
  for (const NamedMethod& method : registered_layer_methods().entries()) {
    known += (known.empty() ? "" : ", ") + method.name;
  }
  throw Error(ErrorKind::kInvalidArgument,
              "method '" + std::string(name) + "' is unknown; expected one of: " + known);
}

std::vector<int32_t> rows_of(const SiteRows& site, int64_t expert) {
  std::vector<int32_t> chosen;
  if (expert < 0) {
    chosen.resize(static_cast<size_t>(site.rows.count()));
    std::iota(chosen.begin(), chosen.end(), 0);
    return chosen;
  }
  for (size_t slot = 0; slot < site.experts.size(); ++slot) {
    if (site.experts[slot] != expert) continue;
    const auto top_k = static_cast<size_t>(site.top_k);
    chosen.push_back(static_cast<int32_t>(site.rows_per_token > 1 ? slot : slot / top_k));
  }
  return chosen;
}

const PlannedTensor* LayerWork::find(const std::string& module) const {
  const auto found = context_.planned.find(module);
  return found == context_.planned.end() ? nullptr : found->second;
}

std::vector<float> LayerWork::weights(const PlannedTensor& planned) const {
  SourceRows source(context_.checkpoint, planned, folds().find(planned.source->name));
  return source.read_floats(0, planned.source->shape[0]);
}

std::vector<float> LayerWork::plain_weights(const PlannedTensor& planned) const {
  SourceRows source(context_.checkpoint, planned);
  return source.read_floats(0, planned.source->shape[0]);
}

QuantizedMatrix LayerWork::round(const PlannedTensor& planned,
                                 std::span<const float> weights) const {
  const int64_t rows = planned.source->shape[0], cols = planned.source->shape[1];
  const auto pieces = static_cast<size_t>((rows + kRoundedRows - 1) / kRoundedRows);
  std::vector<QuantizedMatrix> parts(pieces);
  const auto round_piece = [&](size_t piece) {
    const int64_t first = static_cast<int64_t>(piece) * kRoundedRows;
    const int64_t count = std::min(kRoundedRows, rows - first);
    parts[piece] = planned.method->quantize(
        weights.subspan(static_cast<size_t>(first * cols), static_cast<size_t>(count * cols)),
        count, cols, planned.dtype, planned.group_size);
  };
  core::run_pieces(threads(), pieces, [&] { return round_piece; });
  QuantizedMatrix whole = std::move(parts.front());
  for (size_t i = 1; i < pieces; ++i) {
    const auto append = [](auto& to, const auto& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    append(whole.values, parts[i].values);
    append(whole.scales, parts[i].scales);
    append(whole.zero_points, parts[i].zero_points);
  }
  whole.rows = rows;
  return whole;
}

void LayerWork::try_out(const PlannedTensor& planned, const QuantizedMatrix& matrix) {
  try_out(planned, matrix, folds().find(planned.source->name));
}

void LayerWork::try_out(const PlannedTensor& planned, const QuantizedMatrix& matrix,
                        const Fold* fold) {
  std::vector<float> values = dequantize_matrix(matrix);
  if (fold != nullptr) undo_fold(*fold, matrix.cols, values);
  run_.replace_matrix(planned.module, values);
}

void LayerWork::restore(const PlannedTensor& planned) { run_.restore_matrix(planned.module); }

void LayerWork::finish(const PlannedTensor& planned, std::span<const float> weights,
                       QuantizedMatrix matrix, CalibrationFacts facts) {
  const QuantError error = quantization_error(weights, matrix);
  finish({&planned, std::move(matrix), facts, error});
}

void LayerWork::finish(const CalibratedMatrix& kept) {
  context_.progress.tell(kept.planned->source->name);
  try_out(*kept.planned, kept.matrix);
  context_.on_matrix(kept);
}

std::vector<float> LayerWork::probe(int64_t tokens) {
  context_.progress.tell();
  return run_.probe(tokens);
}

}  // namespace vitrine::compress
