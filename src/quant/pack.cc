// SPDX-License-Identifier: Apache-2.0
// The layout of compressed-tensors' `pack_to_int32`: offset values, lowest bits first, rows padded
// to whole words.
#include "pack.h"

#include <bit>
#include <string>

#include "vitrine/core.h"

namespace vitrine {
namespace {

void check_sizes(size_t found, int64_t rows, int64_t cols, int64_t per_row, int bits,
                 const char* what) {
  if (bits != 4 && bits != 8) {
    throw Error(ErrorKind::kInvalidArgument,
                "packing of " + std::to_string(bits) + " bits is unknown; expected 4 or 8");
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

int64_t packed_words(int64_t cols, int bits) {
  const int64_t per_word = 32 / bits;
  return cols / per_word + (cols % per_word != 0 ? 1 : 0);
}

std::vector<int32_t> pack_int32(std::span<const int8_t> values, int64_t rows, int64_t cols,
                                int bits) {
  check_sizes(values.size(), rows, cols, cols, bits, "matrix of values");
  const int per_word = 32 / bits;
  const uint32_t mask = (1u << bits) - 1u;
  const int offset = 1 << (bits - 1);
  const int64_t words = packed_words(cols, bits);
  std::vector<int32_t> packed(static_cast<size_t>(rows * words));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t word = 0; word < words; ++word) {
      uint32_t bits_of_word = 0;
      for (int i = 0; i < per_word && word * per_word + i < cols; ++i) {
        const int value = values[static_cast<size_t>(row * cols + word * per_word + i)] + offset;
        bits_of_word |= (static_cast<uint32_t>(value) & mask) << (bits * i);
      }
      packed[static_cast<size_t>(row * words + word)] = std::bit_cast<int32_t>(bits_of_word);
    }
  }
  return packed;
}

std::vector<int8_t> unpack_int32(std::span<const int32_t> packed, int64_t rows, int64_t cols,
                                 int bits) {
  check_sizes(packed.size(), rows, cols, bits == 4 || bits == 8 ? packed_words(cols, bits) : 0,
              bits, "packed matrix");
  const int per_word = 32 / bits;
  const uint32_t mask = (1u << bits) - 1u;
  const int offset = 1 << (bits - 1);
  const int64_t words = packed_words(cols, bits);
  std::vector<int8_t> values(static_cast<size_t>(rows * cols));
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* row_words = packed.data() + row * words;
    int8_t* row_values = values.data() + row * cols;
    for (int64_t col = 0; col < cols; ++col) {
      const auto word = std::bit_cast<uint32_t>(row_words[col / per_word]);
      const auto value = static_cast<int>((word >> (bits * (col % per_word))) & mask);
      row_values[col] = static_cast<int8_t>(value - offset);
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
  const int64_t words = bits == 4 || bits == 8 ? packed_words(rows, bits) : 0;
  check_sizes(packed.size(), words, cols, cols, bits, "packed matrix");
  const auto values = unpack_int32(transpose(packed, words, cols), cols, rows, bits);
  return transpose(std::span<const int8_t>(values), cols, rows);
}

}  // namespace vitrine
