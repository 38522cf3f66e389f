// SPDX-License-Identifier: Apache-2.0
#include "strided_read.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace vitrine::checkpoint {
namespace {

constexpr size_t kBlockNumbers = 32;                // of a block
constexpr size_t kPackedBytes = kBlockNumbers / 2;  // its numbers, in the file
constexpr size_t kStoredBytes = 1 + kPackedBytes;   // as ggml has it, with the scale

constexpr uint64_t kReadBytes = uint64_t{1} << 18;  // at most, of a read of several rows

using EightBytes = uint8_t __attribute__((vector_size(8)));

/// A block's numbers from neighbours side by side to halves side by side.
void reorder(const std::byte* from, std::byte* to) {
  constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
  uint64_t first = 0, last = 0;
  std::memcpy(&first, from, sizeof(first));
  std::memcpy(&last, from + sizeof(first), sizeof(last));
  const auto even = std::bit_cast<EightBytes>((first & kLow) | (last & kLow) << 4U);
  const auto odd = std::bit_cast<EightBytes>((first >> 4U & kLow) | (last & ~kLow));
  const auto numbers =
      __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
  static_assert(sizeof(numbers) == kPackedBytes);
  std::memcpy(to, &numbers, sizeof(numbers));
}

/// Rows that lie `stride` bytes apart, read some at a time, with what lies between them.
class RowReader {
 public:
  RowReader(const InputFile& file, uint64_t offset, uint64_t stride, size_t row_bytes)
      : file_(file),
        offset_(offset),
        stride_(stride),
        row_bytes_(row_bytes),
        most_(std::max<uint64_t>(1, kReadBytes / stride)) {}
  /// Returns the bytes of a row, which is `left` rows before the end. Rows come in their order.
  const std::byte* next(uint64_t row, uint64_t left) {
    if (taken_ == held_) {
      held_ = std::min(most_, left);
      taken_ = 0;
      bytes_.resize((held_ - 1) * stride_ + row_bytes_);
      file_.read(offset_ + row * stride_, bytes_);
    }
    return bytes_.data() + taken_++ * stride_;
  }

 private:
  const InputFile& file_;
  uint64_t offset_, stride_;
  size_t row_bytes_;
  uint64_t most_, held_ = 0, taken_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace

void read_strided_blocks(std::span<const InputFile> files, const TensorInfo& info,
                         int64_t row_begin, std::span<std::byte> out) {
  const auto blocks = static_cast<size_t>(info.shape.back()) / kBlockNumbers;
  RowReader numbers(files[static_cast<size_t>(info.file_index)], info.file_offset, info.row_stride,
                    blocks * kPackedBytes);
  RowReader scales(files[static_cast<size_t>(info.scale_file_index)], info.scale_offset,
                   info.scale_row_stride, blocks);
  const uint64_t rows = out.size() / (blocks * kStoredBytes);
  std::byte* to = out.data();
  for (uint64_t row = 0; row < rows; ++row) {
    const uint64_t at = static_cast<uint64_t>(row_begin) + row;
    const std::byte* const of_numbers = numbers.next(at, rows - row);
    const std::byte* const of_scales = scales.next(at, rows - row);
    for (size_t block = 0; block < blocks; ++block, to += kStoredBytes) {
      to[0] = of_scales[block];
      reorder(of_numbers + block * kPackedBytes, to + 1);
    }
  }
}

void read_strided(std::span<const InputFile> files, const TensorInfo& info, uint64_t byte_offset,
                  std::span<std::byte> out) {
  if (out.empty()) return;
  const auto cols = info.shape.size() == 1 ? uint64_t{1} : static_cast<uint64_t>(info.shape[1]);
  const uint64_t size = dtype_size(info.dtype);
  const uint64_t end = byte_offset + out.size();
  const uint64_t row_bytes = cols * size;
  if (info.block_format != nullptr) {
    const auto blocks = static_cast<size_t>(cols) / kBlockNumbers;
    std::vector<std::byte> stored(blocks * kStoredBytes);
    std::vector<float> values(cols);
    for (uint64_t row = byte_offset / row_bytes; row * row_bytes < end; ++row) {
      read_strided_blocks(files, info, static_cast<int64_t>(row), stored);
      info.block_format->dequantize(stored.data(), static_cast<int64_t>(blocks), values.data());
      const uint64_t from = std::max(row * row_bytes, byte_offset);
      const uint64_t to = std::min((row + 1) * row_bytes, end);
      std::memcpy(out.data() + (from - byte_offset),
                  reinterpret_cast<const std::byte*>(values.data()) + (from - row * row_bytes),
                  to - from);
    }
    return;
  }
  // Elements that lie this far apart are gathered from the mapping: reads of a few bytes each would
  // take a system call an element.
  const std::byte* base =
      files[static_cast<size_t>(info.file_index)].map().data() + info.file_offset;
  for (uint64_t at = byte_offset; at < end;) {
    const uint64_t element = at / size, within = at % size;
    const uint64_t count = std::min(size - within, end - at);
    const std::byte* source =
        base + element / cols * info.row_stride + element % cols * info.col_stride;
    std::memcpy(out.data() + (at - byte_offset), source + within, count);
    at += count;
  }
}

}  // namespace vitrine::checkpoint
