// SPDX-License-Identifier: Apache-2.0
// Stacks of quantized experts: where each part of a tensor goes, and tensors that do not fit.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "stacked_folder.h"
#include "vitrine/quant.h"

namespace vitrine::testing {
namespace {

using nlohmann::json;

const std::string kStem = "model.layers.0.mlp.experts.";
const std::string kGateUp = kStem + "gate_up_proj", kDown = kStem + "down_proj";
constexpr int64_t kExperts = 2, kRows = 32, kCols = 64;  // of a gate

size_t count_of_shape(const std::vector<int64_t>& shape) {
  size_t count = 1;
  for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
  return count;
}

/// Numbers that repeat nothing obvious, without the NaN of 8-bit floats.
StoredTensor bytes_of(DType dtype, const std::vector<int64_t>& shape, uint32_t seed) {
  std::vector<uint8_t> bytes(count_of_shape(shape) * dtype_size(dtype));
  for (uint8_t& byte : bytes) {
    seed = seed * 1664525u + 1013904223u;
    byte = static_cast<uint8_t>(seed >> 24);
    if ((byte & 0x7f) == 0x7f) byte = 0;
  }
  return stored(dtype, shape, bytes);
}

/// Powers of two, each another one: 1/16 and up, in order.
StoredTensor scales_of(const std::vector<int64_t>& shape) {
  std::vector<float> values(count_of_shape(shape));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i + 1) / 16;
  return stored(DType::kF32, shape, values);
}

float scale_at(const StoredTensor& scales, size_t i) {
  float value = 0;
  std::memcpy(&value, &scales.bytes[i * sizeof(float)], sizeof(float));
  return value;
}

/// As transformers 5 saves 8-bit floats, with scales of these shapes.
StoredTensors float8_stacks(const std::vector<int64_t>& gate_up, const std::vector<int64_t>& down) {
  return {{kGateUp, bytes_of(DType::kF8E4M3, {kExperts, 2 * kRows, kCols}, 1)},
          {kGateUp + "_scale_inv", scales_of(gate_up)},
          {kDown, bytes_of(DType::kF8E4M3, {kExperts, kCols, kRows}, 2)},
          {kDown + "_scale_inv", scales_of(down)}};
}

json float8_config(const json& block) {
  return {{"quant_method", "fp8"}, {"weight_block_size", block}, {"activation_scheme", "dynamic"}};
}

json packed_config(const std::string& target = "Linear", bool symmetric = true) {
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"config_groups",
           {{"group_0",
             {{"targets", {target}},
              {"weights",
               {{"num_bits", 4},
                {"type", "int"},
                {"symmetric", symmetric},
                {"strategy", "group"},
                {"group_size", 32}}}}}}}};
}

StoredTensors packed_stacks() {
  const std::vector<int64_t> shape = {kExperts, 2 * kRows, kCols};
  return {{kGateUp + ".weight_packed", bytes_of(DType::kI32, {kExperts, 2 * kRows, kCols / 8}, 3)},
          {kGateUp + ".weight_scale", scales_of({kExperts, 2 * kRows, kCols / 32})},
          {kGateUp + ".weight_shape", stored(DType::kI64, {3}, shape)}};
}

class StackedModulesTest : public ::testing::Test {
 protected:
  Checkpoint open(const json& quantization, const StoredTensors& tensors) {
    json config = json::parse(small_config());
    if (!quantization.is_null()) config["quantization_config"] = quantization;
    write_bytes(folder_ / "config.json", config.dump());
    write_stored(folder_ / "model.safetensors", tensors);
    return Checkpoint::open(folder_.path());
  }

  /// Reads all modules.
  void read(const json& quantization, const StoredTensors& tensors) {
    const Checkpoint checkpoint = open(quantization, tensors);
    for (const TensorInfo& info : checkpoint.tensors()) {
      const auto found =
          checkpoint.find_quantized_tensors(info.name.substr(0, info.name.rfind('.')));
      if (found) checkpoint.read_quantized_floats(*found, 0, found->rows);
    }
  }

  void expect_error(const json& quantization, const StoredTensors& tensors,
                    std::initializer_list<std::string_view> parts,
                    ErrorKind kind = ErrorKind::kBadFile) {
    const Error error = error_of([&] { read(quantization, tensors); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"model.safetensors", "expected"})) << error.what();
  }

  /// Compares each module of gate and up with the numbers of the file times what `scale` says of
  /// (expert, row of both, column).
  template <typename Scale>
  void expect_gate_up(const Checkpoint& checkpoint, const StoredTensors& tensors, Scale scale) {
    const std::vector<std::byte>& bytes = tensors.at(kGateUp).bytes;
    for (int64_t expert = 0; expert < kExperts; ++expert) {
      for (const bool is_up : {false, true}) {
        const std::string module =
            kStem + std::to_string(expert) + (is_up ? ".up_proj" : ".gate_proj");
        const auto found = checkpoint.find_quantized_tensors(module);
        ASSERT_TRUE(found) << module;
        std::vector<float> expected;
        for (int64_t row = is_up ? kRows : 0; row < (is_up ? 2 : 1) * kRows; ++row) {
          for (int64_t col = 0; col < kCols; ++col) {
            const auto at = static_cast<size_t>((expert * 2 * kRows + row) * kCols + col);
            expected.push_back(e4m3_to_float(std::to_integer<uint8_t>(bytes[at])) *
                               scale(expert, row, col));
          }
        }
        EXPECT_EQ(checkpoint.read_quantized_floats(*found, 0, kRows), expected) << module;
      }
    }
  }

  TemporaryFolder folder_;
};

TEST_F(StackedModulesTest, ReadsBlocksOf8BitFloats) {
  const StoredTensors tensors = float8_stacks({kExperts, 2, 2}, {kExperts, 2, 1});
  const Checkpoint checkpoint = open(float8_config({32, 32}), tensors);
  const StoredTensor& scales = tensors.at(kGateUp + "_scale_inv");
  expect_gate_up(checkpoint, tensors, [&](int64_t expert, int64_t row, int64_t col) {
    return scale_at(scales, static_cast<size_t>((expert * 2 + row / 32) * 2 + col / 32));
  });
  // One block of rows that both halves share.
  const StoredTensors shared = float8_stacks({kExperts, 1, 2}, {kExperts, 1, 1});
  const StoredTensor& few = shared.at(kGateUp + "_scale_inv");
  expect_gate_up(open(float8_config({64, 32}), shared), shared,
                 [&](int64_t expert, int64_t, int64_t col) {
                   return scale_at(few, static_cast<size_t>(expert * 2 + col / 32));
                 });
}

TEST_F(StackedModulesTest, ReadsOneScaleAMatrixInEachOfItsShapes) {
  const std::vector<int64_t> shapes[] = {{kExperts, 1, 1}, {kExperts}, {kExperts, 1}, {1}, {}};
  for (const std::vector<int64_t>& shape : shapes) {
    const StoredTensors tensors = float8_stacks(shape, shape);
    const StoredTensor& scales = tensors.at(kGateUp + "_scale_inv");
    const bool has_each = count_of_shape(shape) > 1;
    expect_gate_up(open(float8_config(nullptr), tensors), tensors,
                   [&](int64_t expert, int64_t, int64_t) {
                     return scale_at(scales, has_each ? static_cast<size_t>(expert) : 0);
                   });
  }
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{kExperts, 2}, {kExperts, 2, 1}}) {
    const StoredTensors tensors = float8_stacks(shape, {kExperts});
    const StoredTensor& scales = tensors.at(kGateUp + "_scale_inv");
    expect_gate_up(open(float8_config(nullptr), tensors), tensors,
                   [&](int64_t expert, int64_t row, int64_t) {
                     return scale_at(scales, static_cast<size_t>(expert * 2 + row / kRows));
                   });
  }
}

TEST_F(StackedModulesTest, NamesActivationScalesAsThoseOfOneModule) {
  StoredTensors tensors = float8_stacks({kExperts}, {kExperts});
  tensors[kGateUp + "_activation_scale"] = scales_of({kExperts});
  const Checkpoint checkpoint = open(float8_config(nullptr), tensors);
  EXPECT_NE(checkpoint.find(kGateUp + ".activation_scale"), nullptr);
}

TEST_F(StackedModulesTest, FindsTheConfigByEitherName) {
  for (const char* target : {"Linear", "re:.*experts\\.0\\.(gate|up)_proj", "re:.*gate_up_proj$"}) {
    const Checkpoint checkpoint = open(packed_config(target), packed_stacks());
    const auto found = checkpoint.find_quantized_tensors(kStem + "0.up_proj");
    ASSERT_TRUE(found) << target;
    EXPECT_EQ(found->rows, kRows);
    EXPECT_EQ(found->cols, kCols);
    EXPECT_TRUE(found->is_in_place);
    EXPECT_EQ(found->numbers->fused_from, kGateUp + ".weight_packed");
  }
  expect_error(packed_config("re:.*q_proj$"), packed_stacks(), {"leaves the module out"});
}

TEST_F(StackedModulesTest, TakesColumnsFromWholeWordsWithoutAShape) {
  StoredTensors tensors = packed_stacks();
  tensors.erase(kGateUp + ".weight_shape");
  const Checkpoint checkpoint = open(packed_config(), tensors);
  EXPECT_EQ(checkpoint.find_quantized_tensors(kStem + "1.gate_proj")->cols, kCols);
  json three = packed_config();
  three["config_groups"]["group_0"]["weights"]["num_bits"] = 3;
  tensors[kGateUp + ".weight_packed"] = bytes_of(DType::kI32, {kExperts, 2 * kRows, 6}, 3);
  expect_error(three, tensors, {"gate_up_proj.weight_packed' have no '.weight_shape'"});
}

TEST_F(StackedModulesTest, RefusesTensorsThatDoNotFit) {
  const json config = float8_config({32, 32});
  const StoredTensors good = float8_stacks({kExperts, 2, 2}, {kExperts, 2, 1});
  const auto with = [](StoredTensors tensors, const std::string& name, StoredTensor tensor) {
    tensors[name] = std::move(tensor);
    return tensors;
  };
  const auto without = [](StoredTensors tensors, const std::string& name) {
    tensors.erase(name);
    return tensors;
  };
  const std::string scale = kGateUp + "_scale_inv";
  EXPECT_NO_THROW(read(config, good));
  expect_error(config, with(good, scale, scales_of({3, 2, 2})),
               {scale, "F32 [3, 2, 2]", "each of the 2 experts of '" + kGateUp});
  expect_error(config, with(good, scale, scales_of({kExperts, 5, 2})),
               {scale, "[2, 5, 2]", "[experts, 2, groups]"});
  expect_error(config, with(good, scale, scales_of({kExperts, 2, 3})),
               {"experts.0.gate_proj.weight_scale_inv', a part of '" + scale, "F32 [1, 3]",
                "[1, 2] from quantization_config"});
  expect_error(config, without(good, scale),
               {"the quantized experts '" + kGateUp + "' have no '.weight_scale_inv'"});
  expect_error(config, with(good, kGateUp, bytes_of(DType::kF8E4M3, {kExperts, 63, kCols}, 1)),
               {kGateUp, "[2, 63, 64]", "[experts, 2 x rows, columns]"});
  expect_error(config, with(good, kDown, bytes_of(DType::kF8E4M3, {kCols, kRows}, 1)),
               {kDown, "[64, 32]", "[experts, rows, columns]"});
  expect_error(config, with(good, kGateUp, bytes_of(DType::kI16, {kExperts, 2 * kRows, kCols}, 1)),
               {"is I16", "F8_E4M3, I8, U8 or I32"});
  expect_error(config, with(good, kGateUp + ".weight", bytes_of(DType::kF8E4M3, {1, 2, 2}, 1)),
               {"holds both '" + kGateUp});
  expect_error(config, with(good, kStem + "0.up_proj.weight", bytes_of(DType::kF8E4M3, {2, 2}, 1)),
               {"the fused tensor '" + kGateUp, "stands elsewhere too"});
  expect_error(float8_config({24, 32}), with(good, scale, scales_of({kExperts, 3, 2})),
               {scale, "stands for 24 rows each", "the first 32 rows", "are the gate"},
               ErrorKind::kUnsupported);
}

TEST_F(StackedModulesTest, RefusesWhatMayBeReadInTwoWays) {
  const json config = packed_config();
  const StoredTensors floats = {{kGateUp, bytes_of(DType::kBF16, {kExperts, 2 * kRows, kCols}, 1)},
                                {kGateUp + "_scale", scales_of({kExperts, kRows, 4})}};
  expect_error(config, floats, {kGateUp, "is BF16", "_scale'", "save without repack_moe"},
               ErrorKind::kUnsupported);
  expect_error(nullptr, floats, {"save without repack_moe"}, ErrorKind::kUnsupported);
  // As many scales of blocks that reach from the gate into up as of gate and of up.
  StoredTensors blocks = {{kGateUp, bytes_of(DType::kF8E4M3, {kExperts, 2 * kRows, kCols}, 1)},
                          {kGateUp + "_scale_inv", scales_of({kExperts, 2, 2})}};
  expect_error(float8_config({48, 32}), blocks, {"_scale_inv'", "stands for 48 rows each"},
               ErrorKind::kUnsupported);
  StoredTensors uneven = {
      {kGateUp + "_packed", bytes_of(DType::kI32, {kExperts, 26, kCols / 8}, 1)},
      {kGateUp + "_scale", scales_of({kExperts, 26, 2})},
      {kGateUp + "_zero_point", bytes_of(DType::kI32, {kExperts, 4, 2}, 5)}};
  expect_error(packed_config("Linear", false), uneven,
               {"_zero_point'", "words of 32 bits each", "the first 13 rows"},
               ErrorKind::kUnsupported);
  expect_error(nullptr, {{kGateUp, bytes_of(DType::kF8E4M3, {kExperts, 2 * kRows, kCols}, 1)}},
               {kGateUp, "there is no quantization_config", "experts.0.gate_proj'"});
  StoredTensors biased = packed_stacks();
  biased[kGateUp + "_bias"] = scales_of({kExperts, 2 * kRows});
  expect_error(config, biased, {"gate_up_proj_bias'", "may take turns"}, ErrorKind::kUnsupported);
}

TEST_F(StackedModulesTest, RefusesPackedNumbersThatDoNotFit) {
  StoredTensors tensors = packed_stacks();
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{3, 2 * kRows, kCols},
                                            {kExperts, 2 * kRows + 1, kCols},
                                            {kExperts, 2 * kRows, -1}}) {
    tensors[kGateUp + ".weight_shape"] = stored(DType::kI64, {3}, shape);
    expect_error(packed_config(), tensors, {"gate_up_proj.weight_shape' holds other extents"});
  }
  tensors[kGateUp + ".weight_shape"] =
      stored(DType::kI64, {kExperts, 2}, std::vector<int64_t>{64, 64, 64, 56});
  expect_error(packed_config(), tensors, {"as many columns for each expert"});
  tensors[kGateUp + ".weight_shape"] = stored(DType::kF32, {2}, std::vector<float>{64, 64});
  expect_error(packed_config(), tensors, {"weight_shape' is F32 [2]", "I64 [experts, 2]"});
  StoredTensors asymmetric = packed_stacks();
  asymmetric[kGateUp + "_zero_point"] = bytes_of(DType::kI32, {kExperts, 7, 2}, 5);
  expect_error(packed_config("Linear", false), asymmetric,
               {"gate_up_proj_zero_point' is I32 [2, 7, 2]", "whole words for the 32 rows"});
  asymmetric[kGateUp + "_zero_point"] = bytes_of(DType::kI32, {kExperts, 8, 2}, 5);
  EXPECT_NO_THROW(read(packed_config("Linear", false), asymmetric));
}

TEST_F(StackedModulesTest, RefusesFactorsThatDoNotFit) {
  json config = packed_config();
  config["format"] = "nvfp4-pack-quantized";
  config["config_groups"]["group_0"]["weights"] = {
      {"num_bits", 4}, {"type", "float"}, {"symmetric", true}, {"group_size", 16}};
  StoredTensors tensors = {
      {kGateUp + "_packed", bytes_of(DType::kU8, {kExperts, 2 * kRows, kCols / 2}, 6)},
      {kGateUp + "_scale", bytes_of(DType::kF8E4M3, {kExperts, 2 * kRows, kCols / 16}, 7)}};
  expect_error(config, tensors, {"gate_up_proj_packed' have no '.weight_global_scale'"});
  tensors[kGateUp + "_global_scale"] = scales_of({kExperts, 3});
  expect_error(config, tensors, {"_global_scale' is F32 [2, 3]", "[experts, 2] of gate and up"});
  tensors[kGateUp + "_global_scale"] = scales_of({kExperts + 1, 2});
  expect_error(config, tensors, {"_global_scale' is F32 [3, 2]", "each of the 2 experts"});
  tensors[kGateUp + "_global_scale"] = scales_of({kExperts, 2});
  EXPECT_NO_THROW(read(config, tensors));
}

}  // namespace
}  // namespace vitrine::testing
