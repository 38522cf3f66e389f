// SPDX-License-Identifier: Apache-2.0
// The books of IQ1 to IQ3 as kernels look them up: entries of eight or four bytes, with the bias of
// their formats added, or codes of two or three bits each, which a table of levels turns into the
// same bytes.
#pragma once

#include <iterator>

#include "../code_books.h"

namespace vitrine::kernels::blocks {

/// Keeps bytes from being negative, and is so small that products fit 16 bits.
constexpr int kIq1Bias = 16, kIq2Bias = 64, kIq3XxsBias = 64, kIq3SBias = 16;
inline constexpr uint8_t kIq1Bytes[4] = {8, 16, 24, 16};
inline constexpr uint8_t kIq2Bytes[4] = {72, 89, 107, 64};
inline constexpr uint8_t kIq3XxsBytes[8] = {68, 76, 84, 92, 100, 108, 116, 126};
inline constexpr uint8_t kIq3SBytes[8] = {17, 19, 21, 23, 25, 27, 29, 31};

// Two products with activations of 127 at most, and as many of these sums as kChain of the formats
// says, fit 16 bits. IQ1 adds 1 to its largest byte.
static_assert(4 * 2 * (kIq1Bytes[2] + 1) * 127 < 1 << 15);
static_assert(2 * kIq2Bytes[2] * 127 < 1 << 15);
static_assert(2 * kIq3XxsBytes[7] * 127 < 1 << 15);
static_assert(4 * 2 * kIq3SBytes[7] * 127 < 1 << 15);

/// Entry: what an entry is expanded to, uint64_t or uint32_t. kEntries: the codes.
template <class Entry, const auto& kEntries, const auto& kBytes>
struct Book {
  static constexpr int kCount = static_cast<int>(std::size(kEntries));
  static constexpr const uint16_t* codes() { return kEntries; }
  static constexpr const Entry* entries() { return kExpanded.data(); }
  /// 16 bytes, by code.
  static constexpr const uint8_t* levels() { return kLevels.data(); }

 private:
  alignas(64) static constexpr auto kExpanded = expand_entries<Entry>(kEntries, kBytes);
  alignas(16) static constexpr auto kLevels = [] {
    std::array<uint8_t, 16> levels{};
    for (size_t i = 0; i < levels.size(); ++i) levels[i] = kBytes[i % std::size(kBytes)];
    return levels;
  }();
};

using Iq1Book = Book<uint64_t, kIq1Entries, kIq1Bytes>;
using Iq2XxsBook = Book<uint64_t, kIq2XxsEntries, kIq2Bytes>;
using Iq2XsBook = Book<uint64_t, kIq2XsEntries, kIq2Bytes>;
using Iq2SBook = Book<uint64_t, kIq2SEntries, kIq2Bytes>;
using Iq3XxsBook = Book<uint32_t, kIq3XxsEntries, kIq3XxsBytes>;
using Iq3SBook = Book<uint32_t, kIq3SEntries, kIq3SBytes>;

}  // namespace vitrine::kernels::blocks
