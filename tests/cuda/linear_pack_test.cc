// SPDX-License-Identifier: Apache-2.0
// Packing for tensor cores, against an unpacker that is written from the layout's description.
#include "tests/cuda/linear_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

struct Place {
  int64_t row, col;
};

/// Calls see(place, stored bits) for every number of a packed matrix, padding too.
template <typename See>
void each_number(const PackedLayout& layout, const uint8_t* packed, See see) {
  for (int64_t tile = 0; tile < layout.tiles; ++tile) {
    for (int64_t chunk = 0; chunk < layout.chunks; ++chunk) {
      const uint8_t* numbers = packed + tile * layout.tile_bytes() + chunk * layout.chunk_bytes;
      for (int at = 0; at < layout.number_bytes; ++at) {
        const int unit = at / 512, lane = at % 512 / 16, word = at % 16 / 4, byte = at % 4;
        const int g = lane / 4, t = lane % 4;
        const int64_t row = 16 * tile + g + 8 * (word % 2);
        const int64_t first = 128 * chunk + 8 * t;
        switch (layout.kind) {
          case PackedKind::kInt4: {
            const int64_t col = first + 64 * unit + 32 * (word / 2) + byte;
            see(Place{row, col}, numbers[at] & 15);
            see(Place{row, col + 4}, numbers[at] >> 4);
            break;
          }
          case PackedKind::kInt3:
            for (int i = 0; unit == 0 && i < 4; ++i) {
              const int high = numbers[512 + 8 * lane + 4 * (word / 2) + byte];
              see(Place{row, first + 32 * i + 4 * (word / 2) + byte},
                  (numbers[at] >> (2 * i) & 3) | (high >> (i + 4 * (word % 2)) & 1) << 2);
            }
            break;
          case PackedKind::kMxfp4: {
            const int64_t col = first + 64 * unit + 32 * (word / 2) + 2 * byte;
            see(Place{row, col}, numbers[at] & 15);
            see(Place{row, col + 1}, numbers[at] >> 4);
            break;
          }
          case PackedKind::kInt8:
          case PackedKind::kE4M3:
          case PackedKind::kQ6K:
            see(Place{row, first + 32 * unit + 4 * (word / 2) + byte},
                static_cast<int8_t>(numbers[at]));
            break;
          case PackedKind::kQ2K:
            for (int i = 0; i < 4; ++i) {
              see(Place{row, first + 32 * i + 4 * (word / 2) + byte}, numbers[at] >> (2 * i) & 3);
            }
            break;
          case PackedKind::kBF16: {
            if (byte % 2 == 1) break;
            const int64_t col = first + 32 * (unit / 2) + 4 * (unit % 2) + 2 * (word / 2);
            see(Place{row, col + byte / 2}, numbers[at] | numbers[at + 1] << 8);
            break;
          }
        }
      }
    }
  }
}

float entry(ScaleFormat format, const uint8_t* entries, int index) {
  uint32_t word = 0;
  memcpy(&word, entries + (format == ScaleFormat::kF32 ? 4 : 2) * index,
         format == ScaleFormat::kF32 ? 4 : 2);
  if (format == ScaleFormat::kF32) return float_from_bits(word);
  return format == ScaleFormat::kF16 ? widen_f16(static_cast<uint16_t>(word))
                                     : widen_bf16(static_cast<uint16_t>(word));
}

/// What a stored number means by the layout's description.
double meaning(const PackedLayout& layout, const uint8_t* packed, Place place, int bits) {
  if (layout.kind == PackedKind::kBF16) return widen_bf16(static_cast<uint16_t>(bits));
  const uint8_t* chunk =
      packed + place.row / 16 * layout.tile_bytes() + place.col / 128 * int64_t{layout.chunk_bytes};
  const int groups = 128 / layout.group_size;
  const int group = static_cast<int>(place.col % 128) / layout.group_size;
  const uint8_t* scales = chunk + layout.number_bytes + group * layout.scale_bytes;
  const uint8_t* offsets =
      chunk + layout.number_bytes + groups * layout.scale_bytes + group * layout.offset_bytes;
  const int r = static_cast<int>(place.row % 16);
  const int pair = 2 * (r % 8) + r / 8;
  if (layout.kind == PackedKind::kMxfp4) {
    constexpr double kValues[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return std::ldexp(bits & 8 ? -kValues[bits & 7] : kValues[bits & 7], scales[pair] - 127);
  }
  if (layout.kind == PackedKind::kQ2K) {
    const uint8_t both = scales[2 * pair + place.col % 32 / 16];
    const uint8_t* shared = chunk + layout.number_bytes + groups * layout.scale_bytes;
    return double{entry(ScaleFormat::kF16, shared, pair)} * (both & 15) * bits -
           double{entry(ScaleFormat::kF16, shared + 32, pair)} * (both >> 4);
  }
  const double scale = entry(layout.scale_format, scales, pair);
  if (layout.kind == PackedKind::kE4M3) return scale * e4m3_to_float(static_cast<uint8_t>(bits));
  if (layout.kind == PackedKind::kQ6K) {
    return scale * static_cast<int8_t>(offsets[2 * pair + place.col % 32 / 16]) * bits;
  }
  const bool is_unsigned = layout.kind == PackedKind::kInt4 || layout.kind == PackedKind::kInt3;
  const int number = bits - (layout.kind == PackedKind::kInt4 ? 8 : is_unsigned ? 4 : 0);
  switch (layout.offset_format) {
    case OffsetFormat::kNone: return scale * number;
    case OffsetFormat::kZeroPoint: {
      int16_t zero_point;
      memcpy(&zero_point, offsets + 2 * pair, 2);
      return scale * (number - zero_point);
    }
    default: break;
  }
  const ScaleFormat format = layout.offset_format == OffsetFormat::kF16    ? ScaleFormat::kF16
                             : layout.offset_format == OffsetFormat::kBF16 ? ScaleFormat::kBF16
                                                                           : ScaleFormat::kF32;
  return scale * (is_unsigned ? bits : bits + 128) + entry(format, offsets, pair);
}

TEST(CudaPack, EveryElementLandsOnceAndMeansTheSame) {
  Random random(1);
  std::vector<MatrixKind> kinds = quantized_kinds();
  kinds.push_back({WeightFormat::kBF16});
  kinds.push_back({WeightFormat::kE4M3});
  kinds.push_back({WeightFormat::kQ6K});
  kinds.push_back({WeightFormat::kQ2K});
  size_t shape = 0;
  for (const MatrixKind& kind : kinds) {
    for (int repeat = 0; repeat < 2; ++repeat, ++shape) {
      const int64_t rows = std::array{1, 16, 37, 48}[shape % 4];
      const int64_t cols =
          possible_cols(kind.format, std::array{1, 31, 70, 128, 195, 256, 300}[shape % 7]);
      const Matrix matrix = make_matrix(random, kind, rows, cols);
      const Packed packed(matrix);
      const PackedLayout& layout = packed.matrix.layout;
      EXPECT_EQ(layout.chunk_bytes % 16, 0);
      std::vector<int> seen(static_cast<size_t>(rows * cols));
      each_number(layout, packed.memory.data(), [&](Place place, int bits) {
        if (place.row >= rows || place.col >= cols) return;
        ++seen[static_cast<size_t>(place.row * cols + place.col)];
        const double expected = matrix.at(place.row, place.col);
        const double value = meaning(layout, packed.memory.data(), place, bits);
        ASSERT_LE(std::fabs(value - expected), 1e-6 * std::fabs(expected) + 1e-6)
            << "row " << place.row << " col " << place.col;
      });
      for (const int count : seen) ASSERT_EQ(count, 1);
    }
  }
}

TEST(CudaPack, PaddingAddsNothing) {
  Random random(2);
  for (const MatrixKind& kind : quantized_kinds()) {
    const int64_t rows = 19, cols = possible_cols(kind.format, 33);
    const Packed packed(make_matrix(random, kind, rows, cols));
    const PackedLayout& layout = packed.matrix.layout;
    each_number(layout, packed.memory.data(), [&](Place place, int bits) {
      if (place.row < rows) return;
      const int bias = layout.kind == PackedKind::kInt4   ? 8
                       : layout.kind == PackedKind::kInt3 ? 4
                                                          : 0;
      const int zero = place.col < padded_cols(cols) ? bias : 0;
      ASSERT_TRUE(bits == 0 || bits == zero);
      const float scale =
          layout.kind == PackedKind::kMxfp4
              ? 0.0f
              : entry(layout.scale_format,
                      packed.memory.data() + layout.tile_bytes() * (place.row / 16) +
                          layout.number_bytes,
                      static_cast<int>(2 * (place.row % 8) + place.row % 16 / 8));
      ASSERT_EQ(scale, 0.0f);
    });
  }
}

TEST(CudaPack, RowsInPartsAreTheWhole) {
  Random random(3);
  for (const WeightFormat format :
       {WeightFormat::kInt4, WeightFormat::kInt3, WeightFormat::kInt8, WeightFormat::kBF16}) {
    const Matrix matrix = make_matrix(random, {format, ScaleFormat::kF16, 64}, 53, 200);
    const Packed whole(matrix);
    const PackedLayout& layout = whole.matrix.layout;
    DeviceArray<uint8_t> parts(whole.memory.size());
    for (const auto& [begin, end] : {std::pair{32, 53}, std::pair{0, 16}, std::pair{16, 32}}) {
      pack_matrix(matrix.weight, begin, end, parts.data());
    }
    EXPECT_EQ(parts.to_vector(), whole.memory.to_vector());
    EXPECT_EQ(static_cast<int64_t>(parts.size()), layout.bytes());
  }
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
