// SPDX-License-Identifier: Apache-2.0
#include "vitrine/quant.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "quant/pack.h"

namespace vitrine {
namespace {

std::vector<float> random_weights(size_t count, DType dtype, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 0.05f);
  std::vector<float> weights(count);
  for (float& weight : weights) {
    weight = normal(generator);
    if (dtype == DType::kBF16) weight = bf16_to_float(float_to_bf16(weight));
    if (dtype == DType::kF16) weight = f16_to_float(float_to_f16(weight));
  }
  return weights;
}

/// A binary float's value by its definition, from its bits without the sign.
double value_of(uint32_t bits, int mantissa_bits, int bias) {
  const auto exponent = static_cast<int>(bits >> mantissa_bits);
  const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
  const uint32_t leading = exponent == 0 ? 0 : 1u << mantissa_bits;
  return std::ldexp(leading + mantissa, std::max(exponent, 1) - bias - mantissa_bits);
}

TEST(FloatFormats, ValuesAreThoseOfTheDefinition) {
  for (uint32_t bits = 0; bits < 0x8000; ++bits) {
    const float half = f16_to_float(static_cast<uint16_t>(bits));
    const float bfloat = bf16_to_float(static_cast<uint16_t>(bits));
    if (bits < 0x7c00) {
      EXPECT_EQ(half, value_of(bits, 10, 15));
    }
    if (bits > 0x7c00) {
      EXPECT_TRUE(std::isnan(half));
    }
    if (bits < 0x7f80) {
      EXPECT_EQ(bfloat, value_of(bits, 7, 127));
    }
    if (bits > 0x7f80) {
      EXPECT_TRUE(std::isnan(bfloat));
    }
    const auto negative = static_cast<uint16_t>(bits | 0x8000);
    EXPECT_EQ(std::bit_cast<uint32_t>(f16_to_float(negative)),
              std::bit_cast<uint32_t>(half) | 0x80000000u);
    EXPECT_EQ(std::bit_cast<uint32_t>(bf16_to_float(negative)),
              std::bit_cast<uint32_t>(bfloat) | 0x80000000u);
  }
  EXPECT_EQ(f16_to_float(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(bf16_to_float(0x7f80), std::numeric_limits<float>::infinity());
}

TEST(FloatFormats, EveryHalfAndBfloatSurvivesTheRoundTrip) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float half = f16_to_float(static_cast<uint16_t>(bits));
    const float bfloat = bf16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(half)) {
      EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(half))));
    } else {
      EXPECT_EQ(float_to_f16(half), bits);
    }
    if (std::isnan(bfloat)) {
      EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(bfloat))));
    } else {
      EXPECT_EQ(float_to_bf16(bfloat), bits);
    }
  }
}

TEST(FloatFormats, E4M3IsTheNearest) {
  for (int code = 0; code < 0x7e; ++code) {
    const float value = e4m3_to_float(static_cast<uint8_t>(code));
    const float next = e4m3_to_float(static_cast<uint8_t>(code + 1));
    const int exponent = code >> 3, mantissa = code & 7;
    EXPECT_EQ(value,
              std::ldexp(exponent == 0 ? mantissa : 8 + mantissa, std::max(exponent, 1) - 10));
    EXPECT_EQ(float_to_e4m3(value), code);
    EXPECT_EQ(float_to_e4m3(-value), code | 0x80);
    const float middle = (value + next) / 2;  // exact
    EXPECT_EQ(float_to_e4m3(middle), code % 2 == 0 ? code : code + 1);
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, value)), code);
    EXPECT_EQ(float_to_e4m3(std::nextafter(middle, next)), code + 1);
  }
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0f);
  EXPECT_EQ(float_to_e4m3(448.0f), 0x7e);
  EXPECT_EQ(float_to_e4m3(1e30f), 0x7e);
  EXPECT_EQ(float_to_e4m3(-std::numeric_limits<float>::infinity()), 0xfe);
  EXPECT_EQ(float_to_e4m3(1e-40f), 0);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xff)));
  EXPECT_EQ(float_to_e4m3(std::numeric_limits<float>::quiet_NaN()) & 0x7f, 0x7f);
}

TEST(FloatFormats, HalvesBetweenTwoNeighboursGoToTheEvenOne) {
  for (uint16_t bits = 0; bits < 0x7c00; ++bits) {
    const float low = f16_to_float(bits);
    // One above the largest half stands 65536: what lies halfway to it becomes infinity.
    const float high = bits == 0x7bff ? 65536.0f : f16_to_float(static_cast<uint16_t>(bits + 1));
    const float middle = (low + high) / 2;
    const auto even = static_cast<uint16_t>(bits + (bits & 1));
    EXPECT_EQ(float_to_f16(middle), even) << bits;
    EXPECT_EQ(float_to_f16(-middle), even | 0x8000) << bits;
    EXPECT_EQ(float_to_f16(std::nextafter(middle, 0.0f)), bits);
    EXPECT_EQ(float_to_f16(std::nextafter(middle, 1e9f)), bits + 1);
  }
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808000u)), 0x3f80);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f818000u)), 0x3f82);
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0x3f808001u)), 0x3f81);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

TEST(Pack, HoldsTheFirstValueInTheLowestBits) {
  const std::vector<int8_t> values = {-8, 7, 0, 1, -1, 2, 3, 4};
  const std::vector<int32_t> packed = pack_int32(values, 1, 8, 4);
  ASSERT_EQ(packed.size(), 1u);
  EXPECT_EQ(static_cast<uint32_t>(packed[0]), 0xcba798f0u);
  const std::vector<int8_t> bytes = {-128, 127, 0, -1};
  EXPECT_EQ(static_cast<uint32_t>(pack_int32(bytes, 1, 4, 8)[0]), 0x7f80ff00u);
}

TEST(Pack, SurvivesTheRoundTripForAnyWidth) {
  std::mt19937 generator(1);
  for (int bits : {2, 3, 4, 5, 6, 7, 8}) {
    for (int64_t cols : {1, 3, 7, 8, 9, 31, 32, 33, 100}) {
      std::uniform_int_distribution<int> value(-(1 << (bits - 1)), (1 << (bits - 1)) - 1);
      std::vector<int8_t> values(static_cast<size_t>(5 * cols));
      for (int8_t& v : values) v = static_cast<int8_t>(value(generator));
      const auto packed = pack_int32(values, 5, cols, bits);
      EXPECT_EQ(packed.size(), static_cast<size_t>(5 * packed_words(cols, bits)));
      EXPECT_EQ(unpack_int32(packed, 5, cols, bits), values);
    }
  }
  EXPECT_THROW(unpack_int32(std::vector<int32_t>(3), 2, 8, 4), Error);
  EXPECT_THROW(pack_int32(std::vector<int8_t>(3), 2, 8, 4), Error);
  EXPECT_THROW(pack_int32(std::vector<int8_t>(16), 2, 8, 9), Error);
}

TEST(Pack, AlongTheRowsIsThePackingOfTheTransposedMatrix) {
  std::mt19937 generator(2);
  std::uniform_int_distribution<int> value(-8, 7);
  for (int64_t rows : {1, 7, 8, 21}) {
    std::vector<int8_t> values(static_cast<size_t>(rows * 3)), transposed(values.size());
    for (int8_t& v : values) v = static_cast<int8_t>(value(generator));
    for (size_t i = 0; i < values.size(); ++i) {
      transposed[i % 3 * static_cast<size_t>(rows) + i / 3] = values[i];
    }
    const auto by_rows = pack_int32_rows(values, rows, 3, 4);
    const auto by_cols = pack_int32(transposed, 3, rows, 4);
    ASSERT_EQ(by_rows.size(), by_cols.size());
    const auto words = static_cast<size_t>(packed_words(rows, 4));
    for (size_t i = 0; i < by_rows.size(); ++i) {
      EXPECT_EQ(by_rows[i], by_cols[i % 3 * words + i / 3]);
    }
    EXPECT_EQ(unpack_int32_rows(by_rows, rows, 3, 4), values);
  }
  EXPECT_THROW(unpack_int32_rows(std::vector<int32_t>(3), 9, 3, 4), Error);
  EXPECT_THROW(pack_int32_rows(std::vector<int8_t>(3), 2, 2, 4), Error);
}

TEST(Dequantize, TakesOffTheZeroPointOfTheGroup) {
  QuantizedMatrix matrix;
  matrix.bits = 4;
  matrix.rows = 2;
  matrix.cols = 33;
  matrix.values.assign(66, 3);
  matrix.scales = {0.5f, 2.0f, 1.0f, 4.0f};
  EXPECT_EQ(dequantize_matrix(matrix)[32], 6.0f);  // a last group of one column
  matrix.zero_points = {-8, 7, 3, 2};
  const auto weights = dequantize_matrix(matrix);
  EXPECT_EQ(weights[0], 5.5f);
  EXPECT_EQ(weights[31], 5.5f);
  EXPECT_EQ(weights[32], -8.0f);
  EXPECT_EQ(weights[33], 0.0f);
  EXPECT_EQ(weights[65], 4.0f);
  EXPECT_EQ(quantization_error(weights, matrix).worst_absolute, 0.0);
  matrix.zero_points.pop_back();
  EXPECT_THROW(dequantize_matrix(matrix), Error);
  matrix.zero_points.clear();
  matrix.scales.pop_back();
  EXPECT_THROW(dequantize_matrix(matrix), Error);
}

TEST(RoundToNearest, AsymmetricUsesTheWholeRange) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int bits : {4, 8}) {
      auto weights = random_weights(6 * 256, dtype, 4);
      for (float& weight : weights) weight = std::fabs(weight);  // symmetric would waste half
      const auto matrix = quantize_matrix(weights, 6, 256, dtype, {bits, 64, false});
      const auto symmetric = quantize_matrix(weights, 6, 256, dtype, {bits, 64});
      ASSERT_EQ(matrix.zero_points.size(), matrix.scales.size());
      EXPECT_TRUE(symmetric.zero_points.empty());
      for (const int8_t zero_point : matrix.zero_points) EXPECT_EQ(zero_point, -(1 << (bits - 1)));
      EXPECT_LT(quantization_error(weights, matrix).mean_absolute,
                0.75 * quantization_error(weights, symmetric).mean_absolute);
    }
  }
  std::vector<float> wide(32, std::numeric_limits<float>::max());
  wide[1] = -wide[0];
  EXPECT_THROW(quantize_matrix(wide, 1, 32, DType::kF32, {4, 32, false}), Error);
}

TEST(RoundToNearest, StaysWithinHalfAStepOfTheWeight) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int bits : {4, 8}) {
      for (int group_size : {32, 64, 128}) {
        const auto weights = random_weights(6 * 256, dtype, 3);
        const QuantizedMatrix matrix = quantize_matrix(weights, 6, 256, dtype, {bits, group_size});
        EXPECT_EQ(matrix.scale_dtype, dtype);
        const auto restored = dequantize_matrix(matrix);
        double sum = 0.0, worst = 0.0;
        for (size_t i = 0; i < weights.size(); ++i) {
          const float scale = matrix.scales[i / static_cast<size_t>(group_size)];
          // Half a step, the largest weight's clamp, and the rounding of scale and quotient.
          EXPECT_LE(std::fabs(weights[i] - restored[i]), scale * (bits == 4 ? 0.56f : 1.1f));
          const double error = std::fabs(static_cast<double>(weights[i]) - restored[i]);
          sum += error;
          worst = std::max(worst, error);
        }
        const QuantError error = quantization_error(weights, matrix);
        EXPECT_DOUBLE_EQ(error.worst_absolute, worst);
        EXPECT_NEAR(error.mean_absolute, sum / static_cast<double>(weights.size()), 1e-12);
      }
    }
  }
}

TEST(RoundToNearest, RoundsTiesToEvenAndClampsAtTheEnds) {
  std::vector<float> weights(32, 0.0f);
  weights[0] = 7.5f;  // scale 1
  weights[1] = -7.5f;
  weights[2] = 0.5f;
  weights[3] = 1.5f;
  weights[4] = -2.5f;
  const QuantizedMatrix matrix = quantize_matrix(weights, 1, 32, DType::kF32, {4, 32});
  EXPECT_EQ(matrix.scales[0], 1.0f);
  EXPECT_EQ(matrix.values[0], 7);
  EXPECT_EQ(matrix.values[1], -8);
  EXPECT_EQ(matrix.values[2], 0);
  EXPECT_EQ(matrix.values[3], 2);
  EXPECT_EQ(matrix.values[4], -2);
}

TEST(RoundToNearest, GivesAGroupOfZerosTheEpsilonOfItsDtype) {
  const std::vector<float> zeros(64, 0.0f);
  EXPECT_EQ(quantize_matrix(zeros, 1, 64, DType::kF32, {8, 32}).scales[1], 0x1p-23f);
  EXPECT_EQ(quantize_matrix(zeros, 1, 64, DType::kF16, {8, 32}).scales[1], 0x1p-10f);
  EXPECT_EQ(quantize_matrix(zeros, 1, 64, DType::kBF16, {8, 32}).scales[1], 0x1p-7f);
}

TEST(RoundToNearest, RefusesWhatItCannotDo) {
  const std::vector<float> weights(64, 1.0f);
  EXPECT_THROW(quantize_matrix(weights, 1, 64, DType::kF32, {5, 32}), Error);
  EXPECT_THROW(quantize_matrix(weights, 1, 64, DType::kF32, {4, 16}), Error);
  EXPECT_THROW(quantize_matrix(weights, 1, 64, DType::kF32, {4, 128}), Error);
  EXPECT_THROW(quantize_matrix(weights, 2, 64, DType::kF32, {4, 32}), Error);
  EXPECT_THROW(quantize_matrix(weights, 1, 64, DType::kI32, {4, 32}), Error);
  EXPECT_THROW(quantize_matrix(weights, INT64_MAX, 64, DType::kF32, {4, 32}), Error);
  std::vector<float> broken = weights;
  broken[40] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(quantize_matrix(broken, 1, 64, DType::kF32, {4, 32}), Error);
}

TEST(Float8, ARowHasOneScaleAndZerosHaveNone) {
  auto weights = random_weights(3 * 200, DType::kBF16, 9);
  std::fill_n(weights.begin() + 200, 200, 0.0f);
  const auto matrix = find_quant_method("fp8").quantize(weights, 3, 200, DType::kBF16, 32);
  EXPECT_EQ(matrix.number_format, NumberFormat::kE4M3);
  ASSERT_EQ(matrix.groups(), 2);
  ASSERT_EQ(matrix.scales.size(), 6u);
  for (size_t row = 0; row < 3; ++row)
    EXPECT_EQ(matrix.scales[2 * row], matrix.scales[2 * row + 1]);
  const std::vector<float> restored = dequantize_matrix(matrix);
  for (size_t i = 0; i < weights.size(); ++i) {
    const float scale = matrix.scales[i / 200 * 2];
    // Half a step of three mantissa bits, a little more for two roundings to bfloat16.
    EXPECT_NEAR(restored[i], weights[i], std::max(std::fabs(weights[i]) / 14, scale * 0x1p-9f));
  }
  const QuantError error = quantization_error(weights, matrix);
  EXPECT_GT(error.worst_absolute, 0.0);
  weights[401] = INFINITY;
  EXPECT_THROW(find_quant_method("fp8").quantize(weights, 3, 200, DType::kBF16, 32), Error);
  EXPECT_THROW(find_quant_method("fp8").quantize(weights, 3, 201, DType::kBF16, 32), Error);
}

TEST(Registry, FindsSchemesByNameAndNamesThemWhereItFails) {
  const auto methods = quant_methods();
  std::vector<std::string> names;
  for (const QuantMethod& method : methods) {
    names.push_back(method.name);
    EXPECT_EQ(method.symmetric, !method.name.ends_with("-asymmetric")) << method.name;
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"fp8", "fp8-dynamic", "fp8-static", "int3", "int3-asymmetric",
                                      "int4", "int4-asymmetric", "int8", "int8-asymmetric",
                                      "int8-w8a8", "int8-w8a8-static", "mxfp4", "nvfp4"}));
  const auto weights = random_weights(128, DType::kF32, 5);
  const auto by_name = find_quant_method("int4").quantize(weights, 2, 64, DType::kF32, 64);
  const auto by_scheme = quantize_matrix(weights, 2, 64, DType::kF32, {4, 64});
  EXPECT_EQ(by_name.values, by_scheme.values);
  EXPECT_EQ(by_name.scales, by_scheme.scales);
  try {
    find_quant_method("int5");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_STREQ(
        error.what(),
        "scheme 'int5' is unknown; expected one of: fp8, fp8-dynamic, fp8-static, int3, "
        "int3-asymmetric, int4, "
        "int4-asymmetric, int8, int8-asymmetric, int8-w8a8, int8-w8a8-static, mxfp4, nvfp4");
  }
}

}  // namespace
}  // namespace vitrine
