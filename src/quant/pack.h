// SPDX-License-Identifier: Apache-2.0
// Small integers in int32 words, as compressed-tensors' `pack_to_int32` lays them out.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vitrine {

/// Number of int32 words that a packed row of `cols` values takes: ceil(cols * bits / 32).
int64_t packed_words(int64_t cols, int bits);

/// Packs [rows, cols] values as compressed-tensors does: each value plus 2^(bits-1), the first in
/// the lowest bits of a row's first word; a row starts at a word. Returns [rows, packed_words].
std::vector<int32_t> pack_int32(std::span<const int8_t> values, int64_t rows, int64_t cols,
                                int bits);

/// Packs values along the rows, as compressed-tensors does zero points: [packed_words(rows), cols],
/// the first of a column's values in the lowest bits of its first word.
std::vector<int32_t> pack_int32_rows(std::span<const int8_t> values, int64_t rows, int64_t cols,
                                     int bits);
/// The inverse of pack_int32_rows. Throws kInvalidArgument for sizes that disagree.
std::vector<int8_t> unpack_int32_rows(std::span<const int32_t> packed, int64_t rows, int64_t cols,
                                      int bits);

/// The inverse of pack_int32. Throws kInvalidArgument for sizes that disagree.
std::vector<int8_t> unpack_int32(std::span<const int32_t> packed, int64_t rows, int64_t cols,
                                 int bits);

}  // namespace vitrine
