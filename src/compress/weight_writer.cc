// SPDX-License-Identifier: Apache-2.0
#include "weight_writer.h"

#include <algorithm>
#include <cmath>

#include "source_rows.h"
#include "stored_form.h"

namespace vitrine::compress {
namespace {

constexpr uint64_t kBlockBytes = 16u << 20;  // of float32 weights, or of copied bytes

/// A multiple of the zero points that a word holds.
int64_t rows_of_block(int64_t cols) {
  return std::max<int64_t>(
      8, static_cast<int64_t>(kBlockBytes / sizeof(float)) / std::max<int64_t>(1, cols) / 8 * 8);
}

}  // namespace

template <typename Visit>
void WeightWriter::for_each_block(const PlannedTensor& planned, Visit visit) {
  const int64_t rows = planned.source->shape[0];
  SourceRows source_rows(checkpoint_, planned, folds_.find(planned.source->name));
  const int64_t block_rows = rows_of_block(source_rows.columns());
  for (int64_t row = 0; row < rows; row += block_rows) {
    before_block_();
    const int64_t count = std::min(block_rows, rows - row);
    const std::vector<float> weights = source_rows.read_floats(row, count);
    visit(row, count, std::span<const float>(weights));
  }
}

QuantizedTensorReport WeightWriter::quantize(const PlannedTensor& planned, float largest) {
  const TensorInfo& source = *planned.source;
  const int64_t rows = source.shape[0], cols = source.shape[1];
  QuantizedTensorReport report{planned.module, planned.method->bits, planned.group_size, 0.0, 0.0};
  double error_sum = 0.0;
  float divisor = 1.0f;
  for_each_block(planned, [&](int64_t row, int64_t count, std::span<const float> weights) {
    const QuantizedMatrix matrix = quantize_rows(planned, row, count, weights, largest);
    divisor = matrix.divisor;
    const QuantError error = quantization_error(weights, matrix);
    error_sum += error.mean_absolute * static_cast<double>(weights.size());
    report.worst_absolute_error = std::max(report.worst_absolute_error, error.worst_absolute);
    write_rows(writer_, planned, matrix);
  });
  write_rest(writer_, planned, {.divisor = divisor});
  if (rows > 0 && cols > 0) {
    report.mean_absolute_error =
        error_sum / (static_cast<double>(rows) * static_cast<double>(cols));
  }
  return report;
}

float WeightWriter::largest(const PlannedTensor& planned) {
  float largest = 0.0f;
  for_each_block(planned, [&](int64_t, int64_t, std::span<const float> weights) {
    for (const float weight : weights) largest = std::max(largest, std::fabs(weight));
  });
  return largest;
}

void WeightWriter::copy(const PlannedTensor& planned) {
  const TensorInfo& info = *planned.source;
  const Fold* fold = folds_.find(info.name);
  if (planned.is_widened() || fold != nullptr) {
    SourceRows source_rows(checkpoint_, planned, fold);
    const int64_t block_rows = rows_of_block(source_rows.columns());
    for (int64_t row = 0; row < info.shape[0]; row += block_rows) {
      before_block_();
      writer_.write(info.name, source_rows.read(row, std::min(block_rows, info.shape[0] - row)));
    }
    return;
  }
  std::vector<std::byte> block;
  for (uint64_t done = 0; done < info.num_bytes; done += block.size()) {
    before_block_();
    block.resize(std::min(kBlockBytes, info.num_bytes - done));
    checkpoint_.read(info, done, block);
    writer_.write(info.name, block);
  }
}

QuantizedMatrix WeightWriter::quantize_rows(const PlannedTensor& planned, int64_t row,
                                            int64_t count, std::span<const float> weights,
                                            float largest) const {
  const TensorInfo& source = *planned.source;
  const QuantMethod& method = *planned.method;
  try {
    if (method.quantize_part != nullptr) {
      return method.quantize_part(weights, count, source.shape[1], planned.dtype, largest);
    }
    return method.quantize(weights, count, source.shape[1], planned.dtype, planned.group_size);
  } catch (const Error& error) {  // sizes fit by the plan: what is left is the file's content
    throw Error(ErrorKind::kBadFile,
                checkpoint_.weight_files()[static_cast<size_t>(source.file_index)] + ": tensor '" +
                    source.name + "' from row " + std::to_string(row) + ": " + error.what());
  }
}

}  // namespace vitrine::compress
