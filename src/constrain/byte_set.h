// SPDX-License-Identifier: Apache-2.0
// A set of byte values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace vitrine::constrain {

/// Which of the 256 bytes are in.
struct ByteSet {
  std::array<uint64_t, 4> words{};

  static ByteSet range(int low, int high) {
    ByteSet set;
    for (int byte = low; byte <= high; ++byte) set.add(static_cast<uint8_t>(byte));
    return set;
  }
  void add(uint8_t byte) { words[byte >> 6] |= uint64_t{1} << (byte & 63); }
  bool contains(uint8_t byte) const { return (words[byte >> 6] >> (byte & 63)) & 1; }
  bool empty() const { return (words[0] | words[1] | words[2] | words[3]) == 0; }
  ByteSet operator|(const ByteSet& other) const {
    ByteSet set;
    for (size_t i = 0; i < 4; ++i) set.words[i] = words[i] | other.words[i];
    return set;
  }
  ByteSet operator&(const ByteSet& other) const {
    ByteSet set;
    for (size_t i = 0; i < 4; ++i) set.words[i] = words[i] & other.words[i];
    return set;
  }
  bool operator==(const ByteSet&) const = default;
};

/// A mixer for hash tables of words.
inline uint64_t mix_hash(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 29);
}

}  // namespace vitrine::constrain
