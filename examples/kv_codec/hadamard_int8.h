// SPDX-License-Identifier: Apache-2.0
// A codec of a host's own. Keys and values are rotated by a Hadamard transform, which spreads what
// a few large elements hold over all of them; blocks of 64 positions are float32 while they fill,
// and int8 with a scale for each 32 elements of a position when they are whole. Both forms stand in
// the layout of a tile, so that attention reads them where they are.
#pragma once

#include <vitrine/kv_codec.h>

class HadamardInt8 final : public vitrine::KvCodec {
 public:
  std::string_view name() const override { return "hadamard_i8"; }
  int64_t open_bytes(int head_dim) const override;
  int64_t closed_bytes(int head_dim) const override;
  vitrine::KvTileForm open_form() const override { return {vitrine::KvTileKind::kFloat}; }
  vitrine::KvTileForm closed_form() const override { return {vitrine::KvTileKind::kInt8, 32, 32}; }

  // The dot of two rotated vectors is that of the vectors, and a rotation of the rotated output is
  // the output.
  void transform_query(const vitrine::KvHead& head, float* query) const noexcept override;
  void transform_output(const vitrine::KvHead& head, float* output) const noexcept override;
  void write_position(const vitrine::KvHead& head, std::byte* open, int offset, const float* key,
                      const float* value) const noexcept override;
  void close_block(const vitrine::KvHead& head, const std::byte* open,
                   std::byte* closed) const noexcept override;
  void decode_to_tile(const vitrine::KvTileSource& from, const vitrine::KvTileRoom& room,
                      vitrine::KvTile& tile) const noexcept override;
};
