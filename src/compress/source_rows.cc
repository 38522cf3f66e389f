// SPDX-License-Identifier: Apache-2.0
#include "source_rows.h"

#include "stored_form.h"

namespace vitrine::compress {

SourceRows::SourceRows(const Checkpoint& checkpoint, const PlannedTensor& planned, const Fold* fold)
    : checkpoint_(checkpoint), planned_(planned), fold_(fold) {
  if (!planned.is_widened()) return;
  const std::string_view name = planned.source->name;
  const std::string_view module = name.substr(0, name.size() - kWeight.size());
  as_floats_ = checkpoint.find_quantized_tensors(module);
  if (as_floats_ && as_floats_->floats) return;
  as_floats_.reset();
  floats8_ = checkpoint.read_quantized(module);
}

int64_t SourceRows::columns() const {
  const std::vector<int64_t>& shape = planned_.source->shape;
  return shape.size() == 2 ? shape[1] : 1;
}

std::vector<float> SourceRows::read_floats(int64_t row, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count * columns()));
  widen_to_f32(read(row, count).data(), planned_.dtype, std::ssize(values), values.data());
  return values;
}

std::span<const std::byte> SourceRows::read(int64_t row, int64_t count) {
  const int64_t cols = columns();
  if (as_floats_) {
    rows_ =
        narrow(checkpoint_.read_quantized_floats(*as_floats_, row, row + count), planned_.dtype);
    return fold_rows(row, count);
  }
  if (!floats8_) {
    const auto row_bytes = static_cast<uint64_t>(cols) * dtype_size(planned_.dtype);
    rows_.resize(static_cast<size_t>(count) * row_bytes);
    checkpoint_.read(*planned_.source, static_cast<uint64_t>(row) * row_bytes, rows_);
    return fold_rows(row, count);
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
  return fold_rows(row, count);
}

std::span<const std::byte> SourceRows::fold_rows(int64_t row, int64_t count) {
  if (fold_ == nullptr) return rows_;
  std::vector<float> values(static_cast<size_t>(count * columns()));
  widen_to_f32(rows_.data(), planned_.dtype, std::ssize(values), values.data());
  apply_fold(*fold_, row, columns(), values);
  rows_ = narrow(values, planned_.dtype);
  return rows_;
}

}  // namespace vitrine::compress
