// SPDX-License-Identifier: Apache-2.0
#include "source_rows.h"

#include "stored_form.h"

namespace vitrine::compress {

SourceRows::SourceRows(const Checkpoint& checkpoint, const PlannedTensor& planned)
    : checkpoint_(checkpoint), planned_(planned) {
  if (!planned.is_widened()) return;
  const std::string_view name = planned.source->name;
  floats8_ = checkpoint.read_quantized(name.substr(0, name.size() - kWeight.size()));
}

std::span<const std::byte> SourceRows::read(int64_t row, int64_t count) {
  const int64_t cols = planned_.source->shape[1];
  if (!floats8_) {
    const auto row_bytes = static_cast<uint64_t>(cols) * dtype_size(planned_.dtype);
    rows_.resize(static_cast<size_t>(count) * row_bytes);
    checkpoint_.read(*planned_.source, static_cast<uint64_t>(row) * row_bytes, rows_);
    return rows_;
  }
  const int64_t groups = floats8_->groups();
  const auto part = [row, count](const auto& of, int64_t width) {
    const auto first = of.begin() + row * width;
    return std::vector(first, first + count * width);
  };
  QuantizedMatrix rows;
  rows.number_format = floats8_->number_format;
  rows.group_size = floats8_->group_size;
  rows.rows = count;
  rows.cols = cols;
  rows.values = part(floats8_->values, cols);
  rows.scales = part(floats8_->scales, groups);
  rows_ = narrow(dequantize_matrix(rows), planned_.dtype);
  return rows_;
}

}  // namespace vitrine::compress
