// SPDX-License-Identifier: Apache-2.0
// Sixteen rows in plain C++ for decoding blocks (../blocks/format.h). Internal linkage: each file
// has its own copy.
#pragma once

#include <type_traits>

#include "../blocks/format.h"
#include "../half.h"

namespace vitrine::kernels::portable {
namespace {

struct BlockLanes {
  struct Bytes {
    uint8_t at[4 * kTileRows];
  };
  struct Ints {
    int32_t at[kTileRows];
  };
  struct Floats {
    float at[kTileRows];
  };
  using Plane = uint64_t;

  template <class Lanes, class Make>
  static Lanes make(const Make& value) {
    Lanes lanes;
    int i = 0;
    for (auto& lane : lanes.at)
      lane = static_cast<std::remove_reference_t<decltype(lane)>>(value(i++));
    return lanes;
  }

  /// Four bytes, a half, a byte or four bits of each row.
  static Bytes words(const uint8_t* p, int) {
    return make<Bytes>([&](int i) { return p[i]; });
  }
  static Floats halves(const uint8_t* p, int) {
    return make<Floats>([&](int r) { return widen_f16(blocks::half_of(p + 2 * r)); });
  }
  static Ints half_words(const uint8_t* p, int) {
    return make<Ints>([&](int r) { return blocks::half_of(p + 2 * r); });
  }
  static Ints bytes(const uint8_t* p, int) {
    return make<Ints>([&](int r) { return p[r]; });
  }
  /// Makes a half of the low seven bits of each row's byte, which become its bits 7 … 13.
  static Floats byte_halves(const uint8_t* p, int) {
    return make<Floats>([&](int r) { return widen_f16(static_cast<uint16_t>((p[r] & 127) << 7)); });
  }
  static Plane plane(const uint8_t* p, int) {
    Plane bits;
    memcpy(&bits, p, sizeof bits);
    return bits;
  }
  static Plane rows_of(uint64_t plane, int) { return plane; }
  static Ints nibbles(Plane plane) {
    return make<Ints>([&](int r) { return plane >> (4 * r) & 15; });
  }

  static Bytes field(Bytes word, int shift, uint8_t mask) {
    return make<Bytes>([&](int i) { return word.at[i] >> shift & mask; });
  }
  static Bytes set_bytes(uint8_t byte) {
    return make<Bytes>([&](int) { return byte; });
  }
  static Bytes add_bytes(Bytes a, Bytes b) {
    return make<Bytes>([&](int i) { return a.at[i] + b.at[i]; });
  }
  static Bytes add_where(Bytes bytes, Plane where, uint8_t value) {
    return make<Bytes>([&](int i) { return bytes.at[i] + ((where >> i & 1) != 0 ? value : 0); });
  }
  /// kFrom less the byte where a bit is set.
  template <uint8_t kFrom>
  static Bytes subtract_where(Bytes bytes, Plane where) {
    return make<Bytes>(
        [&](int i) { return (where >> i & 1) != 0 ? kFrom - bytes.at[i] : bytes.at[i]; });
  }
  static Bytes bytes_by_row(Ints flags, uint8_t where_set, uint8_t where_clear) {
    return make<Bytes>([&](int i) { return flags.at[i / 4] != 0 ? where_set : where_clear; });
  }
  /// How many of two limits a byte is above.
  static Bytes count_above(Bytes bytes, uint8_t first, uint8_t second) {
    return make<Bytes>([&](int i) { return (bytes.at[i] > first) + (bytes.at[i] > second); });
  }
  static Bytes look_up_16(const uint8_t* table, Bytes indices) {
    return make<Bytes>([&](int i) { return table[indices.at[i]]; });
  }
  static Ints byte_indices(const uint8_t* p, int half) { return bytes(p, half); }
  template <class Book>
  static blocks::Eight<BlockLanes> look_up_fours(Ints first, Ints second) {
    return {bytes_of<Book>(first, 0), bytes_of<Book>(second, 0)};
  }
  template <class Book>
  static blocks::Eights<BlockLanes> look_up_eights(Ints first, Ints second) {
    return {{bytes_of<Book>(first, 0), bytes_of<Book>(first, 32)},
            {bytes_of<Book>(second, 0), bytes_of<Book>(second, 32)}};
  }

  static Ints set_ints(int32_t value) {
    return make<Ints>([&](int) { return value; });
  }
  static Ints mask(Ints a, int32_t bits) {
    return make<Ints>([&](int r) { return a.at[r] & bits; });
  }
  static Ints bit_or(Ints a, Ints b) {
    return make<Ints>([&](int r) { return a.at[r] | b.at[r]; });
  }
  static Ints add(Ints a, Ints b) {
    return make<Ints>([&](int r) { return a.at[r] + b.at[r]; });
  }
  static Ints shift_right(Ints a, int bits) {
    return make<Ints>([&](int r) { return a.at[r] >> bits; });
  }
  static Ints shift_left(Ints a, int bits) {
    return make<Ints>([&](int r) { return a.at[r] << bits; });
  }

  static Floats set(float value) {
    return make<Floats>([&](int) { return value; });
  }
  static Floats mul(Floats a, Floats b) {
    return make<Floats>([&](int r) { return a.at[r] * b.at[r]; });
  }
  static Floats negative(Floats a) {
    return make<Floats>([&](int r) { return -a.at[r]; });
  }
  static Floats to_float(Ints a) {
    return make<Floats>([&](int r) { return static_cast<float>(a.at[r]); });
  }
  /// The halves in the low 16 bits.
  static Floats widen_halves(Ints a) {
    return make<Floats>([&](int r) { return widen_f16(static_cast<uint16_t>(a.at[r])); });
  }

 private:
  /// Four bytes of each row's entry, from bit `shift` on.
  template <class Book>
  static Bytes bytes_of(Ints indices, int shift) {
    return make<Bytes>(
        [&](int i) { return Book::entries()[indices.at[i / 4]] >> (shift + 8 * (i % 4)); });
  }
};

}  // namespace
}  // namespace vitrine::kernels::portable
