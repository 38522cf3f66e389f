// SPDX-License-Identifier: Apache-2.0
// Codecs that give tiles of each form, as a host writes one: blocks hold float32, and what a form
// rounds is rounded as a tile is made.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>

#include "vitrine/kv_codec.h"

namespace vitrine::testing {

class FormCodec : public KvCodec {
 public:
  struct Forms {
    KvTileForm open = {}, closed = {}, fine = {};
    bool closes = true;
    int lag = 0;
    int block_length = 64;
  };
  FormCodec(std::string name, const Forms& forms) : name_(std::move(name)), forms_(forms) {}

  std::string_view name() const override { return name_; }
  int block_length() const override { return forms_.block_length; }
  int lag() const override { return forms_.lag; }
  int64_t open_bytes(int head_dim) const override {
    return int64_t{8} * head_dim * forms_.block_length;
  }
  int64_t closed_bytes(int head_dim) const override {
    return forms_.closes ? open_bytes(head_dim) : 0;
  }
  KvTileForm open_form() const override { return forms_.open; }
  KvTileForm closed_form() const override { return forms_.closed; }
  KvTileForm fine_form() const override { return forms_.fine; }

  void write_position(const KvHead& head, std::byte* open, int offset, const float* key,
                      const float* value) const noexcept override {
    const auto bytes = sizeof(float) * static_cast<size_t>(head.head_dim);
    std::byte* const place = open + static_cast<size_t>(offset) * 2 * bytes;
    std::memcpy(place, key, bytes);
    std::memcpy(place + bytes, value, bytes);
  }
  void close_block(const KvHead& head, const std::byte* open,
                   std::byte* closed) const noexcept override {
    std::memcpy(closed, open, static_cast<size_t>(open_bytes(head.head_dim)));
  }
  void decode_to_tile(const KvTileSource& from, const KvTileRoom& room,
                      KvTile&) const noexcept override {
    const bool is_open = from.open != nullptr;
    const auto* block = reinterpret_cast<const float*>(is_open ? from.open : from.closed);
    const KvTileForm& form = is_open                            ? forms_.open
                             : from.reading == KvReading::kFine ? forms_.fine
                                                                : forms_.closed;
    const Rows rows{block + int64_t{2} * from.first * from.head.head_dim, from.head.head_dim,
                    from.positions};
    switch (form.kind) {
      case KvTileKind::kFloat: return give_floats(rows, room);
      case KvTileKind::kInt16: return give_int16(rows, room);
      case KvTileKind::kInt8: return give_int8(rows, form, room);
    }
  }

 private:
  struct Rows {
    const float* data;
    int n, positions;
    float key(int j, int d) const { return data[(2 * j) * n + d]; }
    float value(int j, int d) const { return data[(2 * j + 1) * n + d]; }
  };

  static void give_floats(const Rows& rows, const KvTileRoom& room) {
    const int row = kv_tile_row(rows.n);
    for (int j = 0; j < rows.positions; ++j) {
      for (int d = 0; d < rows.n; ++d) {
        static_cast<float*>(room.keys)[d * kKvTilePositions + j] = rows.key(j, d);
        static_cast<float*>(room.values)[j * row + d] = rows.value(j, d);
      }
    }
  }

  /// Rounds elements [begin, end) of a position, or positions of an element, to integers up to
  /// `most`; returns their scale.
  template <typename Number, typename Get>
  static float round_all(int begin, int end, int most, const Get& get,
                         const std::function<void(int, Number)>& put) {
    float largest = 0;
    for (int i = begin; i < end; ++i) largest = std::max(largest, std::abs(get(i)));
    const float limit = static_cast<float>(most), factor = limit / largest;
    const bool is_null = !std::isfinite(factor);
    for (int i = begin; i < end; ++i) {
      put(i, is_null ? Number{0} : static_cast<Number>(std::nearbyint(get(i) * factor)));
    }
    return is_null ? 0.0F : largest / limit;
  }

  static void give_int16(const Rows& rows, const KvTileRoom& room) {
    const int row = kv_tile_row(rows.n), most = largest_kv_tile_number(rows.n);
    auto* keys = static_cast<int16_t*>(room.keys);
    auto* values = static_cast<int16_t*>(room.values);
    for (int j = 0; j < rows.positions; ++j) {
      room.key_scales[j] = round_all<int16_t>(
          0, rows.n, most, [&](int d) { return rows.key(j, d); },
          [&](int d, int16_t x) { keys[(d / 2 * kKvTilePositions + j) * 2 + d % 2] = x; });
      room.value_scales[j] = round_all<int16_t>(
          0, rows.n, most, [&](int d) { return rows.value(j, d); },
          [&](int d, int16_t x) { values[(j / 2 * row + d) * 2 + j % 2] = x; });
    }
  }

  static void give_int8(const Rows& rows, const KvTileForm& form, const KvTileRoom& room) {
    const int row = kv_tile_row(rows.n);
    const auto key_place = [&](int j, int d) -> int8_t& {
      return static_cast<int8_t*>(room.keys)[(d / 2 * kKvTilePositions + j) * 2 + d % 2];
    };
    const auto value_place = [&](int j, int d) -> int8_t& {
      return static_cast<int8_t*>(room.values)[(j / 2 * row + d) * 2 + j % 2];
    };
    const auto give = [&](int group, float* scales, const auto& get, const auto& place) {
      if (group == 0) {
        for (int d = 0; d < rows.n; ++d) {
          scales[d] = round_all<int8_t>(
              0, rows.positions, 127, [&](int j) { return get(j, d); },
              [&](int j, int8_t x) { place(j, d) = x; });
        }
        return;
      }
      for (int j = 0; j < rows.positions; ++j) {
        for (int first = 0; first < rows.n; first += group) {
          scales[first / group * kKvTilePositions + j] = round_all<int8_t>(
              first, std::min(first + group, rows.n), 127, [&](int d) { return get(j, d); },
              [&](int d, int8_t x) { place(j, d) = x; });
        }
      }
    };
    give(
        form.key_group, room.key_scales, [&](int j, int d) { return rows.key(j, d); }, key_place);
    give(
        form.value_group, room.value_scales, [&](int j, int d) { return rows.value(j, d); },
        value_place);
  }

  std::string name_;
  Forms forms_;
};

}  // namespace vitrine::testing
