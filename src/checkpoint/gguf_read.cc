// SPDX-License-Identifier: Apache-2.0
#include "gguf_read.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <vector>

namespace vitrine::checkpoint {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 20;  // of a file, read at once

/// Rows of a tensor as the file stores them: extents but the last, counted through; a vector has
/// rows of one value where its order is another, else one row.
struct Rows {
  int64_t count = 1;
  int64_t width = 1;         ///< values of one
  int64_t stored_bytes = 1;  ///< of one

  explicit Rows(const TensorInfo& info) {
    const bool is_column = info.shape.size() == 1 && info.interleaved_head_rows > 0;
    for (size_t i = 0; i + (is_column ? 0 : 1) < info.shape.size(); ++i) count *= info.shape[i];
    width = is_column ? 1 : info.shape.back();
    stored_bytes = static_cast<int64_t>(info.stored_bytes) / count;
  }
};

/// Where the file keeps a row.
int64_t stored_row(const TensorInfo& info, int64_t row) {
  const int64_t head_rows = info.interleaved_head_rows;
  if (head_rows == 0) return row;
  const int64_t head = row / head_rows;
  const int64_t within = row % head_rows;
  const int64_t half = head_rows / 2;
  return head * head_rows + 2 * (within % half) + within / half;
}

/// Calls `use(row, stored bytes)` for rows [begin, end), some at a time read from the file.
void for_each_row(const InputFile& file, const TensorInfo& info, const Rows& rows, int64_t begin,
                  int64_t end, const std::function<void(int64_t, const std::byte*)>& use) {
  // Whole heads at once where rows within them change places.
  const int64_t unit = std::max<int64_t>(1, info.interleaved_head_rows);
  const int64_t units_at_once = std::max<int64_t>(1, kBlockBytes / (rows.stored_bytes * unit));
  std::vector<std::byte> block;
  for (int64_t first = begin / unit * unit; first < end; first += units_at_once * unit) {
    const int64_t last =
        std::min({rows.count, first + units_at_once * unit, (end + unit - 1) / unit * unit});
    block.resize(static_cast<size_t>((last - first) * rows.stored_bytes));
    file.read(info.file_offset + static_cast<uint64_t>(first * rows.stored_bytes), block);
    for (int64_t row = std::max(first, begin); row < std::min(last, end); ++row) {
      use(row, block.data() + (stored_row(info, row) - first) * rows.stored_bytes);
    }
  }
}

}  // namespace

void read_transformed(const InputFile& file, const TensorInfo& info, uint64_t byte_offset,
                      std::span<std::byte> out) {
  if (out.empty()) return;
  const Rows rows(info);
  const auto row_bytes =
      static_cast<uint64_t>(rows.width) * static_cast<uint64_t>(dtype_size(info.dtype));
  const uint64_t end = byte_offset + out.size();
  const auto first_row = static_cast<int64_t>(byte_offset / row_bytes);
  const auto end_row = static_cast<int64_t>((end + row_bytes - 1) / row_bytes);
  std::vector<float> values(info.block_format == nullptr ? 0 : static_cast<size_t>(rows.width));
  for_each_row(file, info, rows, first_row, end_row, [&](int64_t row, const std::byte* stored) {
    const auto* whole = stored;
    if (info.block_format != nullptr) {
      info.block_format->dequantize(stored, rows.width / info.block_format->block_size,
                                    values.data());
      if (info.multiplier != 1.0F) {
        for (float& value : values) value *= info.multiplier;
      }
      whole = reinterpret_cast<const std::byte*>(values.data());
    }
    const uint64_t row_begin = static_cast<uint64_t>(row) * row_bytes;
    const uint64_t from = std::max(row_begin, byte_offset);
    const uint64_t to = std::min(row_begin + row_bytes, end);
    std::memcpy(out.data() + (from - byte_offset), whole + (from - row_begin), to - from);
  });
}

void read_block_rows(const InputFile& file, const TensorInfo& info, int64_t row_begin,
                     std::span<std::byte> out) {
  const Rows rows(info);
  const int64_t row_end = row_begin + static_cast<int64_t>(out.size()) / rows.stored_bytes;
  if (info.interleaved_head_rows == 0) {
    file.read(info.file_offset + static_cast<uint64_t>(row_begin * rows.stored_bytes), out);
    return;
  }
  const auto row_bytes = static_cast<size_t>(rows.stored_bytes);
  for_each_row(file, info, rows, row_begin, row_end, [&](int64_t row, const std::byte* stored) {
    std::memcpy(out.data() + static_cast<size_t>(row - row_begin) * row_bytes, stored, row_bytes);
  });
}

}  // namespace vitrine::checkpoint
