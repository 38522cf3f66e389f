// SPDX-License-Identifier: Apache-2.0
#include "hadamard_int8.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace {

constexpr int kPositions = vitrine::kKvTilePositions;
constexpr int kGroup = 32;

// Rotates parts whose length is the largest power of two that divides the head's; it is its own
// inverse.
void rotate(float* x, int head_dim) {
  const int length = head_dim & -head_dim;
  const float scale = 1.0F / std::sqrt(static_cast<float>(length));
  for (float* part = x; part < x + head_dim; part += length) {
    for (int half = 1; half < length; half *= 2) {
      for (int i = 0; i < length; ++i) {
        if ((i & half) != 0) continue;
        const float a = part[i], b = part[i + half];
        part[i] = a + b;
        part[i + half] = a - b;
      }
    }
    for (int i = 0; i < length; ++i) part[i] *= scale;
  }
}

// float32 in the layout of KvTileKind::kFloat.
struct Open {
  const float* keys;    // [head_dim][64]
  const float* values;  // [64][row]
  Open(const std::byte* block, int head_dim)
      : keys(reinterpret_cast<const float*>(block)), values(keys + head_dim * kPositions) {}
};

// int8 in the layout of KvTileKind::kInt8, scales first.
struct Closed {
  const float* key_scales;    // [groups][64]
  const float* value_scales;  // [groups][64]
  const int8_t* keys;         // [pairs][64][2]
  const int8_t* values;       // [32][row][2]
  Closed(const std::byte* block, int head_dim) {
    const int groups = (head_dim + kGroup - 1) / kGroup;
    key_scales = reinterpret_cast<const float*>(block);
    value_scales = key_scales + groups * kPositions;
    keys = reinterpret_cast<const int8_t*>(value_scales + groups * kPositions);
    values = keys + (head_dim + 1) / 2 * 2 * kPositions;
  }
};

// Quantizes a position's elements x(0) … x(head_dim - 1): makes numbers by groups, and scales.
template <typename Element, typename Put>
void quantize(int head_dim, float* scales, const Element& x, const Put& put) {
  for (int first = 0; first < head_dim; first += kGroup, scales += kPositions) {
    const int end = std::min(first + kGroup, head_dim);
    float largest = 0;
    bool is_finite = true;
    for (int d = first; d < end; ++d) {
      largest = std::max(largest, std::abs(x(d)));
      is_finite = is_finite && std::isfinite(x(d));
    }
    const float factor = largest > 0 ? 127.0F / largest : 0.0F;
    // What is no number stays none. Numbers too small for a factor become 0.
    *scales = !is_finite              ? std::numeric_limits<float>::quiet_NaN()
              : std::isfinite(factor) ? largest / 127.0F
                                      : 0.0F;
    is_finite = is_finite && std::isfinite(factor);
    for (int d = first; d < end; ++d) {
      put(d, static_cast<int8_t>(is_finite ? std::nearbyint(x(d) * factor) : 0.0F));
    }
  }
}

}  // namespace

int64_t HadamardInt8::open_bytes(int head_dim) const {
  return int64_t{4} * kPositions * (head_dim + vitrine::kv_tile_row(head_dim));
}

int64_t HadamardInt8::closed_bytes(int head_dim) const {
  const int64_t groups = (head_dim + kGroup - 1) / kGroup;
  const int64_t numbers = (head_dim + 1) / 2 * 2 + vitrine::kv_tile_row(head_dim);
  return kPositions * (8 * groups + numbers);
}

void HadamardInt8::transform_query(const vitrine::KvHead& head, float* query) const noexcept {
  rotate(query, head.head_dim);
}

void HadamardInt8::transform_output(const vitrine::KvHead& head, float* output) const noexcept {
  rotate(output, head.head_dim);
}

void HadamardInt8::write_position(const vitrine::KvHead& head, std::byte* open, int offset,
                                  const float* key, const float* value) const noexcept {
  const int n = head.head_dim;
  const Open block(open, n);
  float rotated[512];
  std::copy_n(key, n, rotated);
  rotate(rotated, n);
  auto* keys = const_cast<float*>(block.keys);
  for (int d = 0; d < n; ++d) keys[d * kPositions + offset] = rotated[d];
  std::copy_n(value, n, rotated);
  rotate(rotated, n);
  auto* values = const_cast<float*>(block.values);
  std::copy_n(rotated, n, values + offset * vitrine::kv_tile_row(n));
}

void HadamardInt8::close_block(const vitrine::KvHead& head, const std::byte* open,
                               std::byte* closed) const noexcept {
  const int n = head.head_dim, row = vitrine::kv_tile_row(n);
  const Open from(open, n);
  const Closed to(closed, n);
  auto* keys = const_cast<int8_t*>(to.keys);
  auto* values = const_cast<int8_t*>(to.values);
  for (int j = 0; j < kPositions; ++j) {
    quantize(
        n, const_cast<float*>(to.key_scales) + j,
        [&](int d) { return from.keys[d * kPositions + j]; },
        [&](int d, int8_t number) { keys[(d / 2 * kPositions + j) * 2 + d % 2] = number; });
    quantize(
        n, const_cast<float*>(to.value_scales) + j, [&](int d) { return from.values[j * row + d]; },
        [&](int d, int8_t number) { values[(j / 2 * row + d) * 2 + j % 2] = number; });
  }
}

void HadamardInt8::decode_to_tile(const vitrine::KvTileSource& from, const vitrine::KvTileRoom&,
                                  vitrine::KvTile& tile) const noexcept {
  if (from.open != nullptr) {
    const Open block(from.open, from.head.head_dim);
    tile.keys = block.keys;
    tile.values = block.values;
  } else {
    const Closed block(from.closed, from.head.head_dim);
    tile = {block.keys, block.values, block.key_scales, block.value_scales};
  }
}
