// SPDX-License-Identifier: Apache-2.0
// The books of IQ1 to IQ3 as kernels look them up: entries of eight or four bytes, 128 added, or
// codes of two or three bits each, which a table of levels turns into the same bytes.
#pragma once

#include <iterator>

#include "../code_books.h"

namespace vitrine::kernels::blocks {

inline constexpr uint8_t kIq1Bytes[4] = {120, 128, 136, 128};
inline constexpr uint8_t kIq2Bytes[4] = {136, 153, 171, 128};
inline constexpr uint8_t kIq3XxsBytes[8] = {132, 140, 148, 156, 164, 172, 180, 190};
inline constexpr uint8_t kIq3SBytes[8] = {129, 131, 133, 135, 137, 139, 141, 143};

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
