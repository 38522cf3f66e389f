// SPDX-License-Identifier: Apache-2.0
// The layout of compressed-tensors' `pack_to_int32` since its version 0.18: offset values, lowest
// bits first, in one stream of bits; rows padded to whole words.
#include "pack.h"

#include <bit>
#include <string>

#include "vitrine/core.h"

namespace vitrine {
namespace {

bool is_packable(int bits) { return bits >= 2 && bits <= 8; }

void check_sizes(size_t found, int64_t rows, int64_t cols, int64_t per_row, int bits,
                 const char* what) {
  if (!is_packable(bits)) {
    throw Error(ErrorKind::kInvalidArgument,
                "packing of " + std::to_string(bits) + " bits is unknown; expected 2 to 8");
  }
  int64_t expected = 0;
  if (rows < 0 || cols < 0 || __builtin_mul_overflow(rows, per_row, &expected) ||
      found != static_cast<uint64_t>(expected)) {
    throw Error(ErrorKind::kInvalidArgument, std::string(what) + " has " + std::to_string(found) +
                                                 " elements; expected " + std::to_string(rows) +
                                                 " rows of " + std::to_string(per_row));
  }
}

}  // namespace

int64_t packed_words(int64_t cols, int bits) { return (cols * bits + 31) / 32; }

std::vector<int32_t> pack_int32(std::span<const int8_t> values, int64_t rows, int64_t cols,
                                int bits) {
  check_sizes(values.size(), rows, cols, cols, bits, "matrix of values");
  const uint32_t mask = (1u << bits) - 1u;
  const int offset = 1 << (bits - 1);
  const int64_t words = packed_words(cols, bits);
  std::vector<int32_t> packed(static_cast<size_t>(rows * words));
  for (int64_t row = 0; row < rows; ++row) {
    int32_t* row_words = packed.data() + row * words;
    uint64_t left = 0;  // bits that no word has yet
    int count = 0;      // of these
    for (int64_t col = 0; col < cols; ++col) {
      const int value = values[static_cast<size_t>(row * cols + col)] + offset;
      left |= static_cast<uint64_t>(static_cast<uint32_t>(value) & mask) << count;
      count += bits;
      if (count < 32) continue;
      *row_words++ = std::bit_cast<int32_t>(static_cast<uint32_t>(left));
      left >>= 32;
      count -= 32;
    }
    if (count > 0) *row_words = std::bit_cast<int32_t>(static_cast<uint32_t>(left));
  }
  return packed;
}

std::vector<int8_t> unpack_int32(std::span<const int32_t> packed, int64_t rows, int64_t cols,
                                 int bits) {
  check_sizes(packed.size(), rows, cols, is_packable(bits) ? packed_words(cols, bits) : 0, bits,
              "packed matrix");
  const uint32_t mask = (1u << bits) - 1u;
  const int offset = 1 << (bits - 1);
  const int64_t words = packed_words(cols, bits);
  std::vector<int8_t> values(static_cast<size_t>(rows * cols));
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* row_words = packed.data() + row * words;
    int8_t* row_values = values.data() + row * cols;
    uint64_t left = 0;  // bits that no value has yet
    int count = 0;      // of these
    for (int64_t col = 0; col < cols; ++col) {
      if (count < bits) {
        left |= static_cast<uint64_t>(std::bit_cast<uint32_t>(*row_words++)) << count;
        count += 32;
      }
      row_values[col] = static_cast<int8_t>(static_cast<int>(left & mask) - offset);
      left >>= bits;
      count -= bits;
    }
  }
  return values;
}

namespace {

template <typename T>
std::vector<T> transpose(std::span<const T> matrix, int64_t rows, int64_t cols) {
  std::vector<T> result(matrix.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t col = 0; col < cols; ++col) {
      result[static_cast<size_t>(col * rows + row)] = matrix[static_cast<size_t>(row * cols + col)];
    }
  }
  return result;
}

}  // namespace

std::vector<int32_t> pack_int32_rows(std::span<const int8_t> values, int64_t rows, int64_t cols,
                                     int bits) {
  check_sizes(values.size(), rows, cols, cols, bits, "matrix of values");
  const auto packed = pack_int32(transpose(values, rows, cols), cols, rows, bits);
  return transpose(std::span<const int32_t>(packed), cols, packed_words(rows, bits));
}

std::vector<int8_t> unpack_int32_rows(std::span<const int32_t> packed, int64_t rows, int64_t cols,
                                      int bits) {
  const int64_t words = is_packable(bits) ? packed_words(rows, bits) : 0;
  check_sizes(packed.size(), words, cols, cols, bits, "packed matrix");
  const auto values = unpack_int32(transpose(packed, words, cols), cols, rows, bits);
  return transpose(std::span<const int8_t>(values), cols, rows);
}

}  // namespace vitrine
