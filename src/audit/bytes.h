// SPDX-License-Identifier: Apache-2.0
// Little-endian bytes, appended and read back with every size checked.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/core.h"

namespace vitrine::audit {

/// Maps small integers of either sign to small ones without (Protocol Buffers' sint64).
inline uint64_t zigzag(int64_t value) {
  return static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63);
}

static_assert(std::endian::native == std::endian::little, "the log's integers are little-endian");

using Bytes = std::vector<uint8_t>;
using ByteSpan = std::span<const uint8_t>;

inline ByteSpan bytes_of(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

[[noreturn]] inline void throw_damaged(const std::string& what) {
  throw Error(ErrorKind::kBadFile, what);
}

/// Appends to a vector of bytes.
class ByteWriter {
 public:
  explicit ByteWriter(Bytes& out) : out_(out) {}
  void raw(ByteSpan bytes) {
    if (bytes.empty()) return;
    const size_t at = out_.size();
    out_.resize(at + bytes.size());
    std::memcpy(out_.data() + at, bytes.data(), bytes.size());
  }
  void u8(uint8_t value) { out_.push_back(value); }
  void u32(uint32_t value) { fixed(value); }
  void u64(uint64_t value) { fixed(value); }
  /// LEB128: seven bits a byte, lowest first.
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) out_.push_back(static_cast<uint8_t>(value | 0x80));
    out_.push_back(static_cast<uint8_t>(value));
  }
  void string(std::string_view text) {
    varint(text.size());
    raw(bytes_of(text));
  }

 private:
  template <typename T>
  void fixed(T value) {
    const size_t at = out_.size();
    out_.resize(at + sizeof value);
    std::memcpy(out_.data() + at, &value, sizeof value);
  }
  Bytes& out_;
};

/// Takes bytes from a span; throws kBadFile where there are too few or a value is out of range.
class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : bytes_(bytes) {}
  size_t left() const { return bytes_.size(); }
  ByteSpan raw(size_t count) {
    if (count > bytes_.size()) {
      throw_damaged("ends " + std::to_string(count - bytes_.size()) + " bytes too early");
    }
    const ByteSpan taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  uint8_t u8() { return raw(1)[0]; }
  uint32_t u32() { return fixed<uint32_t>(); }
  uint64_t u64() { return fixed<uint64_t>(); }
  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t byte = u8();
      if (shift == 63 && byte > 1) break;
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    throw_damaged("has a number of more than 64 bits");
  }
  /// A varint of at most `most`; `what` names it.
  uint64_t varint(uint64_t most, const char* what) {
    const uint64_t value = varint();
    if (value > most) {
      throw_damaged(std::string(what) + " is " + std::to_string(value) + ", expected at most " +
                    std::to_string(most));
    }
    return value;
  }
  uint8_t u8(uint8_t most, const char* what) {
    const uint8_t value = u8();
    if (value > most) {
      throw_damaged(std::string(what) + " is " + std::to_string(value) + ", expected at most " +
                    std::to_string(most));
    }
    return value;
  }
  std::string string(size_t most, const char* what) {
    const ByteSpan text = raw(varint(most, what));
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }
  template <size_t N>
  std::array<uint8_t, N> array() {
    std::array<uint8_t, N> value;
    std::memcpy(value.data(), raw(N).data(), N);
    return value;
  }
  void expect_end(const char* what) const {
    if (!bytes_.empty()) {
      throw_damaged(std::string(what) + " has " + std::to_string(bytes_.size()) +
                    " bytes too many");
    }
  }

 private:
  template <typename T>
  T fixed() {
    T value;
    std::memcpy(&value, raw(sizeof value).data(), sizeof value);
    return value;
  }
  ByteSpan bytes_;
};

}  // namespace vitrine::audit
