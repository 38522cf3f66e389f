// SPDX-License-Identifier: Apache-2.0
// Rows of embedding tables.
#include "kernels/cuda/embed/embed.h"

#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {
namespace {

using Kind = EmbeddingTable::Kind;

constexpr int32_t kVocab = 7;
const std::vector<int32_t> kIds = {6, 0, 3, 3};

std::vector<uint8_t> stored(FloatFormat format, std::vector<float>& values) {
  std::vector<uint8_t> bytes;
  for (float& value : values) {
    uint32_t bits = bits_from_float(value);
    if (format == FloatFormat::kF16) bits = narrow_f16(value);
    if (format == FloatFormat::kBF16) bits = narrow_bf16(value);
    value = format == FloatFormat::kF32   ? value
            : format == FloatFormat::kF16 ? widen_f16(static_cast<uint16_t>(bits))
                                          : widen_bf16(static_cast<uint16_t>(bits));
    const auto* raw = reinterpret_cast<const uint8_t*>(&bits);
    bytes.insert(bytes.end(), raw, raw + element_bytes(format));
  }
  return bytes;
}

std::vector<float> run(EmbeddingTable table, float multiplier) {
  const DeviceArray<int32_t> ids(kIds);
  DeviceArray<float> out(kIds.size() * static_cast<size_t>(table.n));
  EXPECT_TRUE(ok(embed_rows(table, ids.data(), nullptr, static_cast<int32_t>(kIds.size()),
                            multiplier, out.data(), nullptr)));
  return out.to_vector();
}

TEST(CudaEmbed, FloatRowsAreWidened) {
  Random random(15);
  for (const FloatFormat format : {FloatFormat::kF32, FloatFormat::kF16, FloatFormat::kBF16}) {
    for (const int64_t n : {1, 5, 64, 1030, 2052}) {
      auto values = random.normals(static_cast<size_t>(kVocab * n));
      const DeviceArray<uint8_t> data(stored(format, values));
      const auto out = run({.format = format, .data = data.data(), .n = n}, 1.7f);
      for (size_t i = 0; i < out.size(); ++i) {
        const auto row = static_cast<int64_t>(kIds[i / static_cast<size_t>(n)]);
        const float value = values[static_cast<size_t>(row * n) + i % static_cast<size_t>(n)];
        ASSERT_TRUE(same_bits(out[i], value * 1.7f)) << "n " << n << " element " << i;
      }
    }
  }
}

TEST(CudaEmbed, NegativeIdsNameWhatAnEarlierStepChose) {
  constexpr int64_t kWidth = 37;
  Random random(18);
  auto values = random.normals(kVocab * kWidth);
  const DeviceArray<uint8_t> data(stored(FloatFormat::kF32, values));
  const DeviceArray<int32_t> ids({5, -2, -1, -3, 1}), chosen({6, 2, -1});
  DeviceArray<float> out(5 * kWidth);
  EXPECT_TRUE(ok(embed_rows({.data = data.data(), .n = kWidth}, ids.data(), chosen.data(), 5, 1,
                            out.data(), nullptr)));
  const std::vector<float> found = out.to_vector();
  const int64_t rows[] = {5, 2, 6, 0, 1};  // nothing was chosen: row 0
  for (size_t i = 0; i < found.size(); ++i) {
    const auto row = static_cast<size_t>(rows[i / kWidth]);
    ASSERT_TRUE(same_bits(found[i], values[row * kWidth + i % kWidth])) << "element " << i;
  }
}

// The same numbers in the CPU's packed form give the same bits.
TEST(CudaEmbed, QuantizedRowsHaveThePortableBits) {
  Random random(16);
  const std::pair<ScaleFormat, FloatFormat> formats[] = {{ScaleFormat::kF32, FloatFormat::kF32},
                                                         {ScaleFormat::kF16, FloatFormat::kF16},
                                                         {ScaleFormat::kBF16, FloatFormat::kBF16}};
  for (const auto& [scale_format, format] : formats) {
    for (const bool is_int8 : {true, false}) {
      for (const bool has_minimum : {false, true}) {
        if (is_int8 && has_minimum) continue;  // the CPU's are unsigned there, the device's signed
        for (const int64_t n : {3, 40, 129, 1028}) {
          const OffsetFormat offset = !has_minimum                  ? OffsetFormat::kNone
                                      : format == FloatFormat::kF32 ? OffsetFormat::kF32
                                      : format == FloatFormat::kF16 ? OffsetFormat::kF16
                                                                    : OffsetFormat::kBF16;
          auto matrix = kernels::testing::quantized_matrix(
              random, is_int8 ? WeightFormat::kInt8 : WeightFormat::kInt4, scale_format, 32, kVocab,
              n, offset);
          std::vector<uint8_t> rows;
          for (int64_t row = 0; row < kVocab; ++row) {
            for (int64_t i = 0; i < n; ++i) {
              const auto q =
                  static_cast<uint8_t>(matrix.quantized[static_cast<size_t>(row * n + i)]);
              if (is_int8) {
                rows.push_back(q);
              } else if (i % 2 == 0) {
                rows.push_back((q + 8) & 15);
              } else {
                rows.back() = static_cast<uint8_t>(rows.back() | ((q + 8) & 15) << 4);
              }
            }
          }
          const DeviceArray<uint8_t> data(rows), scales(stored(format, matrix.scales)),
              minimums(stored(format, matrix.offsets));
          const auto out = run({.kind = is_int8 ? Kind::kInt8 : Kind::kInt4,
                                .format = format,
                                .data = data.data(),
                                .scales = scales.data(),
                                .minimums = has_minimum ? minimums.data() : nullptr,
                                .group_size = 32,
                                .n = n},
                               0.6f);
          std::vector<float> expected(static_cast<size_t>(n));
          for (size_t token = 0; token < kIds.size(); ++token) {
            portable_kernels().embed_row(matrix.weight, kIds[token], 0.6f, expected.data());
            for (size_t i = 0; i < expected.size(); ++i) {
              ASSERT_TRUE(same_bits(out[token * expected.size() + i], expected[i])) << i;
              EXPECT_NEAR(expected[i], 0.6 * matrix.at(kIds[token], static_cast<int64_t>(i)), 1e-6);
            }
          }
        }
      }
    }
  }
}

TEST(CudaEmbed, RefusesWhatItCannotDo) {
  EXPECT_EQ(embed_rows({.n = 0}, nullptr, nullptr, 1, 1, nullptr, nullptr).code, kInvalidArguments);
  EXPECT_EQ(embed_rows({.kind = Kind::kInt8, .group_size = 6, .n = 8}, nullptr, nullptr, 1, 1,
                       nullptr, nullptr)
                .code,
            kInvalidArguments);
}

}  // namespace
}  // namespace vitrine::kernels::cuda::testing
