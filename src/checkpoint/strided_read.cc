// SPDX-License-Identifier: Apache-2.0
#include "strided_read.h"

#include <algorithm>
#include <cstring>

namespace vitrine::checkpoint {
namespace {

constexpr size_t kBlockNumbers = 32;                // of a block
constexpr size_t kPackedBytes = kBlockNumbers / 2;  // its numbers, in the file
constexpr size_t kStoredBytes = 1 + kPackedBytes;   // as ggml has it, with the scale

/// A block's numbers from neighbours side by side to halves side by side.
void reorder(const std::byte* from, std::byte* to) {
  const auto number = [&](size_t i) {
    const auto byte = std::to_integer<unsigned>(from[i / 2]);
    return i % 2 == 0 ? byte & 15U : byte >> 4U;
  };
  for (size_t j = 0; j < kPackedBytes; ++j) {
    to[j] = static_cast<std::byte>(number(j) | number(j + kPackedBytes) << 4U);
  }
}

}  // namespace

void read_strided_blocks(std::span<const InputFile> files, const TensorInfo& info,
                         int64_t row_begin, std::span<std::byte> out) {
  const auto blocks = static_cast<size_t>(info.shape.back()) / kBlockNumbers;
  const InputFile& numbers_file = files[static_cast<size_t>(info.file_index)];
  const InputFile& scales_file = files[static_cast<size_t>(info.scale_file_index)];
  std::vector<std::byte> numbers(blocks * kPackedBytes), scales(blocks);
  for (size_t row = 0; row < out.size() / (blocks * kStoredBytes); ++row) {
    const auto at = static_cast<uint64_t>(row_begin) + row;
    numbers_file.read(info.file_offset + at * info.row_stride, numbers);
    scales_file.read(info.scale_offset + at * info.scale_row_stride, scales);
    std::byte* to = out.data() + row * blocks * kStoredBytes;
    for (size_t block = 0; block < blocks; ++block, to += kStoredBytes) {
      to[0] = scales[block];
      reorder(&numbers[block * kPackedBytes], to + 1);
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
