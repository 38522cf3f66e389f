// SPDX-License-Identifier: Apache-2.0
// Tensor-core order from the CPU kernels' tiles: both have tiles of 16 rows and 32-bit words of one
// row, so that packing int4 and int8 is a permutation of words.
#include <cstring>

#include "kernels/cpu/blocks/list.h"
#include "kernels/cpu/packed.h"
#include "kernels/cuda/linear/packed_matrix.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kLaneBytes = 16;

int32_t pair_bytes(ScaleFormat format) { return format == ScaleFormat::kF32 ? 64 : 32; }

int32_t offset_bytes(OffsetFormat format) {
  switch (format) {
    case OffsetFormat::kNone: return 0;
    case OffsetFormat::kF32: return 64;
    default: return 32;
  }
}

/// Where lane (row r, part t)'s word lies in a unit.
uint8_t* word_at(uint8_t* unit, int r, int t, int word) {
  return unit + kLaneBytes * (r % 8 * 4 + t) + 4 * (word + r / 8);
}

/// Nibbles in the order of columns, from bytes of (column j, column 4 + j).
uint32_t in_column_order(uint32_t word) {
  uint32_t ordered = 0;
  for (int j = 0; j < 4; ++j) {
    ordered |= (word >> (8 * j) & 15u) << (4 * j);
    ordered |= (word >> (8 * j + 4) & 15u) << (16 + 4 * j);
  }
  return ordered;
}

/// Number (row r, column c) of a unit of kQ6K, less its bias.
uint8_t q6k_number(const uint8_t* unit, int r, int c) {
  const int low = unit[64 * (c / 8) + 4 * r + c % 4] >> (c % 8 < 4 ? 0 : 4) & 15;
  const int high = unit[256 + 64 * (c / 16) + 4 * r + c % 4] >> (2 * (c % 16 / 4)) & 3;
  return static_cast<uint8_t>((low | high << 4) - 32);
}

void pack_q6k_unit(const uint8_t* unit, uint8_t* to) {
  for (int r = 0; r < kTileRows; ++r) {
    for (int c = 0; c < kUnitCols; ++c) {
      word_at(to, r, c / 8, 2 * (c % 8 / 4))[c % 4] = q6k_number(unit, r, c);
    }
  }
}

void pack_q2k_unit(const uint8_t* unit, int block, uint8_t* to) {
  for (int r = 0; r < kTileRows; ++r) {
    for (int c = 0; c < kUnitCols; ++c) {
      const int u = unit[64 * (c / 16) + 4 * r + c % 4] >> (2 * (c % 16 / 4)) & 3;
      word_at(to, r, c / 8, 2 * (c % 8 / 4))[c % 4] |= static_cast<uint8_t>(u << (2 * block));
    }
  }
}

void pack_int3_unit(const uint8_t* unit, int block, uint8_t* to) {
  for (int r = 0; r < kTileRows; ++r) {
    uint8_t numbers[kUnitCols];
    load_unit_row<WeightFormat::kInt3>(unit, r, numbers);
    for (int c = 0; c < kUnitCols; ++c) {
      const int lane = r % 8 * 4 + c / 8, word = c % 8 / 4;
      const uint32_t low = numbers[c] & 3u, high = numbers[c] >> 2;
      uint8_t* high_bits = to + kPackedUnitBytes + 8 * lane + 4 * word;
      word_at(to, r, c / 8, 2 * word)[c % 4] |= static_cast<uint8_t>(low << (2 * block));
      high_bits[c % 4] |= static_cast<uint8_t>(high << (block + 4 * (r / 8)));
    }
  }
}

/// The 32 columns `block` of a chunk, from one unit of the CPU's tile.
void pack_unit(PackedKind kind, const uint8_t* unit, int block, uint8_t* numbers) {
  if (kind == PackedKind::kInt3) return pack_int3_unit(unit, block, numbers);
  if (kind == PackedKind::kQ2K) return pack_q2k_unit(unit, block, numbers);
  if (kind == PackedKind::kQ6K) return pack_q6k_unit(unit, numbers + kPackedUnitBytes * block);
  for (int r = 0; r < kTileRows; ++r) {
    for (int t = 0; t < 4; ++t) {
      uint32_t words[2];
      if (kind == PackedKind::kInt8) {
        uint8_t* to = numbers + kPackedUnitBytes * block;
        for (int half = 0; half < 2; ++half) {
          memcpy(&words[half], unit + 64 * (2 * t + half) + 4 * r, 4);
          words[half] ^= 0x80808080u;
          memcpy(word_at(to, r, t, 2 * half), &words[half], 4);
        }
        continue;
      }
      memcpy(&words[0], unit + 64 * t + 4 * r, 4);
      if (kind == PackedKind::kMxfp4) words[0] = in_column_order(words[0]);
      memcpy(word_at(numbers + kPackedUnitBytes * (block / 2), r, t, 2 * (block % 2)), &words[0],
             4);
    }
  }
}

/// A unit of kBlocks, `rows` of it, as bytes; those with a minimum are stored less 128.
void pack_block_unit(const DecodedUnit& unit, int64_t rows, bool has_minimum, uint8_t* to) {
  for (int r = 0; r < kTileRows && r < rows; ++r) {
    for (int c = 0; c < kUnitCols; ++c) {
      const auto number = static_cast<uint8_t>(unit.numbers[c / 4][4 * r + c % 4]);
      word_at(to, r, c / 8, 2 * (c % 8 / 4))[c % 4] = has_minimum ? number ^ 0x80 : number;
    }
  }
}

void pack_bf16_chunk(const Weight& weight, int64_t tile, int64_t chunk, uint8_t* numbers) {
  const auto* values = static_cast<const uint8_t*>(weight.data);
  for (int r = 0; r < kTileRows && tile * kTileRows + r < weight.rows; ++r) {
    const int64_t row = tile * kTileRows + r;
    for (int c = 0; c < kChunkCols && chunk * kChunkCols + c < weight.cols; ++c) {
      const int64_t from = row * weight.cols + chunk * kChunkCols + c;
      const int t = c % 32 / 8, s = c % 8 / 4, pair = c % 4 / 2;
      uint8_t* unit = numbers + kPackedUnitBytes * (2 * (c / 32) + s);
      memcpy(word_at(unit, r, t, 2 * pair) + 2 * (c % 2), values + 2 * from, 2);
    }
  }
}

/// Entry [row g of pairs] of a group's scales or offsets.
int pair_index(int r) { return r % 8 * 2 + r / 8; }

void store_float(ScaleFormat format, float value, uint8_t* entries, int index) {
  const uint32_t bits = bits_from_float(value);
  const uint16_t half = format == ScaleFormat::kF16 ? narrow_f16(value) : narrow_bf16(value);
  if (format == ScaleFormat::kF32) memcpy(entries + 4 * index, &bits, 4);
  if (format != ScaleFormat::kF32) memcpy(entries + 2 * index, &half, 2);
}

ScaleFormat minimum_format(OffsetFormat format) {
  return format == OffsetFormat::kF16    ? ScaleFormat::kF16
         : format == OffsetFormat::kBF16 ? ScaleFormat::kBF16
                                         : ScaleFormat::kF32;
}

/// A group of kE4M3 is a chunk.
void pack_e4m3_chunk(const Weight& weight, int64_t tile, int64_t chunk, uint8_t* numbers,
                     uint8_t* scales) {
  const auto* values = static_cast<const uint8_t*>(weight.data);
  const auto* factors = static_cast<const float*>(weight.scales);
  const int64_t groups = group_count(weight.cols, kE4M3Group);
  for (int r = 0; r < kTileRows && tile * kTileRows + r < weight.rows; ++r) {
    const int64_t row = tile * kTileRows + r;
    for (int c = 0; c < kChunkCols && chunk * kChunkCols + c < weight.cols; ++c) {
      uint8_t* unit = numbers + kPackedUnitBytes * (c / 32);
      word_at(unit, r, c % 32 / 8, 2 * (c % 8 / 4))[c % 4] =
          values[row * weight.cols + chunk * kChunkCols + c];
    }
    store_float(ScaleFormat::kF32, factors[row * groups + chunk], scales, pair_index(r));
  }
}

/// decoded: of kBlocks, else null.
void pack_group(const Weight& weight, const PackedLayout& layout, int64_t tile, int64_t group,
                const DecodedUnit* decoded, uint8_t* scales, uint8_t* offsets) {
  for (int r = 0; r < kTileRows && tile * kTileRows + r < weight.rows; ++r) {
    if (layout.kind == PackedKind::kMxfp4) {
      const int64_t from = (tile * layout.groups + group) * kTileRows + r;
      scales[pair_index(r)] = static_cast<const uint8_t*>(weight.scales)[from];
      continue;
    }
    const GroupMeaning meaning = decoded != nullptr
                                     ? decoded->meanings[r]
                                     : group_meaning(weight, tile, group, layout.groups, r);
    if (layout.kind == PackedKind::kQ2K) {
      for (int part = 0; part < 2; ++part) {
        const int both = meaning.part_scale[part] | -meaning.part_minimum[part] << 4;
        scales[2 * pair_index(r) + part] = static_cast<uint8_t>(both);
      }
      continue;
    }
    store_float(layout.scale_format, meaning.scale, scales, pair_index(r));
    if (layout.kind == PackedKind::kQ6K) {
      for (int part = 0; part < 2; ++part) {
        offsets[2 * pair_index(r) + part] = static_cast<uint8_t>(meaning.part_scale[part]);
      }
    } else if (layout.offset_format == OffsetFormat::kZeroPoint) {
      const int own = integer_bias(weight.format);
      const auto zero_point = static_cast<int16_t>(meaning.bias - own);
      memcpy(offsets + 2 * pair_index(r), &zero_point, 2);
    } else if (layout.offset_format != OffsetFormat::kNone) {
      store_float(minimum_format(layout.offset_format), meaning.minimum, offsets, pair_index(r));
    }
  }
}

/// A chunk of kBlocks: each unit is a group.
void pack_block_chunk(const Weight& weight, const PackedLayout& layout, int64_t tile, int64_t chunk,
                      uint8_t* numbers) {
  uint8_t* scales = numbers + layout.number_bytes;
  uint8_t* offsets = scales + kChunkCols / layout.group_size * layout.scale_bytes;
  DecodedUnit decoded;
  for (int block = 0; block < 4 && chunk * 4 + block < layout.groups; ++block) {
    const int64_t unit = chunk * 4 + block;
    decode_unit(weight, tile, unit, &decoded);
    pack_block_unit(decoded, weight.rows - tile * kTileRows, decoded.meanings[0].has_minimum,
                    numbers + kPackedUnitBytes * block);
    pack_group(weight, layout, tile, unit, &decoded, scales + block * layout.scale_bytes,
               offsets + block * layout.offset_bytes);
  }
}

/// What the groups of a kQ2K chunk share.
void pack_q2k_shared(const Weight& weight, const PackedLayout& layout, int64_t tile, int64_t group,
                     uint8_t* to) {
  for (int r = 0; r < kTileRows && tile * kTileRows + r < weight.rows; ++r) {
    const GroupMeaning meaning = group_meaning(weight, tile, group, layout.groups, r);
    store_float(ScaleFormat::kF16, meaning.scale, to, pair_index(r));
    store_float(ScaleFormat::kF16, meaning.minimum, to, kTileRows + pair_index(r));
  }
}

}  // namespace

PackedLayout packed_layout(const Weight& weight) {
  PackedLayout layout;
  layout.rows = weight.rows;
  layout.cols = weight.cols;
  layout.group_size = weight.group_size;
  layout.scale_format = weight.scale_format;
  layout.offset_format = weight.offset_format;
  layout.number_bytes = 2 * kPackedUnitBytes;
  layout.scale_bytes = pair_bytes(weight.scale_format);
  switch (weight.format) {
    case WeightFormat::kInt8:
      layout.kind = PackedKind::kInt8;
      layout.number_bytes = 4 * kPackedUnitBytes;
      break;
    case WeightFormat::kInt3:
      layout.kind = PackedKind::kInt3;
      layout.number_bytes = kPackedUnitBytes + kHighBitBytes;
      break;
    case WeightFormat::kQ4K:  // d * s is exact in float32, and in no shorter format
      layout.scale_format = ScaleFormat::kF32;
      layout.offset_format = OffsetFormat::kF32;
      layout.scale_bytes = pair_bytes(ScaleFormat::kF32);
      break;
    case WeightFormat::kQ6K:
      layout.kind = PackedKind::kQ6K;
      layout.scale_format = ScaleFormat::kF16;
      layout.offset_format = OffsetFormat::kNone;
      layout.number_bytes = 4 * kPackedUnitBytes;
      layout.scale_bytes = pair_bytes(ScaleFormat::kF16);
      break;
    case WeightFormat::kQ2K:
      layout.kind = PackedKind::kQ2K;
      layout.scale_format = ScaleFormat::kF16;
      layout.offset_format = OffsetFormat::kF16;
      layout.number_bytes = kPackedUnitBytes;
      layout.scale_bytes = 2 * kTileRows;
      break;
    case WeightFormat::kBlocks: {  // bytes: int8 where the halves of a group have one scale
      const blocks::Shape shape = blocks::find_shape(weight.block_format);
      layout.kind = shape.has_two_parts ? PackedKind::kQ6K : PackedKind::kInt8;
      layout.scale_format = ScaleFormat::kF32;
      layout.offset_format = shape.has_minimum ? OffsetFormat::kF32 : OffsetFormat::kNone;
      layout.number_bytes = 4 * kPackedUnitBytes;
      layout.scale_bytes = pair_bytes(ScaleFormat::kF32);
      break;
    }
    case WeightFormat::kMxfp4:
      layout.kind = PackedKind::kMxfp4;
      layout.offset_format = OffsetFormat::kNone;
      layout.scale_bytes = kTileRows;
      break;
    case WeightFormat::kBF16:
      layout.kind = PackedKind::kBF16;
      layout.offset_format = OffsetFormat::kNone;
      layout.group_size = kChunkCols;
      layout.number_bytes = 8 * kPackedUnitBytes;
      layout.scale_bytes = 0;
      break;
    case WeightFormat::kE4M3:
      layout.kind = PackedKind::kE4M3;
      layout.scale_format = ScaleFormat::kF32;
      layout.offset_format = OffsetFormat::kNone;
      layout.group_size = kE4M3Group;
      layout.number_bytes = 4 * kPackedUnitBytes;
      layout.scale_bytes = pair_bytes(ScaleFormat::kF32);
      break;
    case WeightFormat::kInt4:
    case WeightFormat::kF32:  // not packed
    case WeightFormat::kF16: break;
  }
  layout.groups = static_cast<int32_t>(group_count(weight.cols, layout.group_size));
  layout.tiles = static_cast<int32_t>(tile_count(weight.rows));
  layout.chunks = static_cast<int32_t>((weight.cols + kChunkCols - 1) / kChunkCols);
  layout.offset_bytes = layout.kind == PackedKind::kQ6K   ? 2 * kTileRows
                        : layout.kind == PackedKind::kQ2K ? kTileRows  // a quarter of the chunk's
                                                          : offset_bytes(layout.offset_format);
  layout.chunk_bytes = layout.number_bytes +
                       kChunkCols / layout.group_size * (layout.scale_bytes + layout.offset_bytes);
  return layout;
}

void pack_matrix(const Weight& weight, int64_t row_begin, int64_t row_end, void* packed) {
  const PackedLayout layout = packed_layout(weight);
  const int groups_per_chunk = kChunkCols / layout.group_size;
  const int64_t units = padded_cols(weight.cols) / kUnitCols;
  const int64_t unit_size =
      is_float_format(weight.format) ? 0 : unit_bytes(weight.format);  // not of kBlocks
  for (int64_t tile = row_begin / kTileRows; tile < tile_count(row_end); ++tile) {
    auto* run = static_cast<uint8_t*>(packed) + tile * layout.tile_bytes();
    memset(run, 0, static_cast<size_t>(layout.tile_bytes()));
    const auto* from = static_cast<const uint8_t*>(weight.data) + tile * units * unit_size;
    for (int64_t chunk = 0; chunk < layout.chunks; ++chunk, run += layout.chunk_bytes) {
      if (weight.format == WeightFormat::kBlocks) {
        pack_block_chunk(weight, layout, tile, chunk, run);
        continue;
      }
      if (layout.kind == PackedKind::kBF16) {
        pack_bf16_chunk(weight, tile, chunk, run);
        continue;
      }
      if (layout.kind == PackedKind::kE4M3) {
        pack_e4m3_chunk(weight, tile, chunk, run, run + layout.number_bytes);
        continue;
      }
      uint8_t* scales = run + layout.number_bytes;
      uint8_t* offsets = scales + groups_per_chunk * layout.scale_bytes;
      for (int block = 0; block < 4 && chunk * 4 + block < units; ++block) {
        pack_unit(layout.kind, from + (chunk * 4 + block) * unit_size, block, run);
      }
      if (layout.kind == PackedKind::kQ2K) {
        pack_q2k_shared(weight, layout, tile, chunk * groups_per_chunk, offsets);
      }
      for (int g = 0; g < groups_per_chunk && chunk * groups_per_chunk + g < layout.groups; ++g) {
        pack_group(weight, layout, tile, chunk * groups_per_chunk + g, nullptr,
                   scales + g * layout.scale_bytes, offsets + g * layout.offset_bytes);
      }
    }
  }
}

}  // namespace vitrine::kernels::cuda
