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
  std::vector<float> weights;
  weights.reserve(static_cast<size_t>(count * cols));
  const int8_t* values = floats8_->values.data() + row * cols;
  for (int64_t i = row; i < row + count; ++i) {
    const float* scales = floats8_->scales.data() + i * floats8_->groups();
    for (int64_t col = 0; col < cols; ++col) {
      const float scale = scales[col / floats8_->group_size];
      weights.push_back(e4m3_to_float(static_cast<uint8_t>(*values++)) * scale);
    }
  }
  rows_ = narrow(weights, planned_.dtype);
  return rows_;
}

}  // namespace vitrine::compress
