// SPDX-License-Identifier: Apache-2.0
// The code books of GGUF's block formats IQ1 to IQ3, one byte a value, so that one load fetches an
// entry: eight values of IQ1 and IQ2 in a uint64_t, four of IQ3 in a uint32_t, the first value in
// the lowest byte. All are expanded by the compiler from code_book_entries.h; there is no code to
// run. Source of layout and values: llama.cpp, ggml/src/ggml-common.h.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "code_book_entries.h"

namespace vitrine::kernels {

/// The magnitudes that the numbers of a packed entry stand for; signs lie in the block. The numbers
/// of IQ1 stand for -1, 0 and 1. Number 3 of IQ1 and IQ2 occurs in no entry.
inline constexpr uint8_t kIq2Levels[4] = {8, 25, 43, 0};
inline constexpr uint8_t kIq3XxsLevels[8] = {4, 12, 20, 28, 36, 44, 52, 62};
inline constexpr uint8_t kIq3SLevels[8] = {1, 3, 5, 7, 9, 11, 13, 15};
inline constexpr uint8_t kIq1Levels[4] = {0xff, 0, 1, 0};

/// Expands one packed entry: each number of `log2(num_levels)` bits becomes the byte of its level.
template <typename Wide, size_t num_levels>
static consteval Wide expand_entry(uint16_t entry, const uint8_t (&levels)[num_levels]) {
  constexpr int kBits = std::bit_width(num_levels - 1);
  Wide wide = 0;
  for (size_t i = 0; i < sizeof(Wide); ++i) {
    wide |= static_cast<Wide>(levels[entry >> (kBits * i) & (num_levels - 1)]) << (8 * i);
  }
  return wide;
}

template <typename Wide, size_t num_entries, size_t num_levels>
static consteval std::array<Wide, num_entries> expand_entries(
    const uint16_t (&entries)[num_entries], const uint8_t (&levels)[num_levels]) {
  std::array<Wide, num_entries> book{};
  for (size_t i = 0; i < num_entries; ++i) book[i] = expand_entry<Wide>(entries[i], levels);
  return book;
}

/// The books: 2, 4, 8, 1, 2 and 16 KiB. kIq1Book holds int8 values -1, 0 and 1.
alignas(64) inline constexpr auto kIq2XxsBook = expand_entries<uint64_t>(kIq2XxsEntries,
                                                                         kIq2Levels);
alignas(64) inline constexpr auto kIq2XsBook = expand_entries<uint64_t>(kIq2XsEntries, kIq2Levels);
alignas(64) inline constexpr auto kIq2SBook = expand_entries<uint64_t>(kIq2SEntries, kIq2Levels);
alignas(64) inline constexpr auto kIq3XxsBook = expand_entries<uint32_t>(kIq3XxsEntries,
                                                                         kIq3XxsLevels);
alignas(64) inline constexpr auto kIq3SBook = expand_entries<uint32_t>(kIq3SEntries, kIq3SLevels);
alignas(64) inline constexpr auto kIq1Book = expand_entries<uint64_t>(kIq1Entries, kIq1Levels);

/// The signs of eight values from seven stored bits: bit i is set where value i is negative, and
/// the eighth is set where it makes their number even. IQ2_XXS, IQ2_XS and IQ3_XXS store seven.
static consteval std::array<uint8_t, 128> sign_patterns() {
  std::array<uint8_t, 128> patterns{};
  for (uint32_t bits = 0; bits < 128; ++bits) {
    patterns[bits] = static_cast<uint8_t>(bits | (std::popcount(bits) & 1) << 7);
  }
  return patterns;
}
alignas(64) inline constexpr auto kSignPatterns = sign_patterns();

}  // namespace vitrine::kernels
