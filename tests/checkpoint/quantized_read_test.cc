// SPDX-License-Identifier: Apache-2.0
// Packed modules, and what quantization_config may say.
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "folders.h"
#include "quant/pack.h"

namespace vitrine {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::is_one_line_with;
using testing::TemporaryFolder;
using testing::write_bytes;

json group(const json& targets, int bits, int group_size, bool symmetric = true) {
  return {{"targets", targets},
          {"weights",
           {{"num_bits", bits},
            {"type", "int"},
            {"symmetric", symmetric},
            {"group_size", group_size},
            {"strategy", "group"},
            {"block_structure", nullptr},
            {"dynamic", false},
            {"actorder", nullptr},
            {"observer", "minmax"},
            {"observer_kwargs", json::object()}}},
          {"input_activations", nullptr},
          {"output_activations", nullptr}};
}

json quantization_config() {
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", group({"Linear"}, 4, 32)}}},
          {"ignore", {"lm_head"}},
          {"kv_cache_scheme", nullptr}};
}

class QuantizedTest : public ::testing::Test {
 protected:
  struct Options {
    int64_t stored_rows = 6;
    int64_t stored_cols = 64;
    DType scale_dtype = DType::kBF16;
    float scale = 0.5f;
    std::string more = {};  ///< name of one more tensor
    bool with_scale = true;
  };

  /// A folder with one 4-bit module "m" of [6, 64], groups of 32.
  Checkpoint open_with(const json& quantization, const Options& options) {
    json config = json::parse(testing::small_config());
    if (!quantization.is_null()) config["quantization_config"] = quantization;
    write_bytes(folder_ / "config.json", config.dump());
    values_.resize(6 * 64);
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<int8_t>(i * 7 % 16) - 8;
    const auto packed = pack_int32(values_, 6, 64, 4);
    SafetensorsWriter writer(folder_ / "model.safetensors");
    writer.declare("m.weight_packed", DType::kI32, {6, 8});
    if (options.with_scale) writer.declare("m.weight_scale", options.scale_dtype, {6, 2});
    writer.declare("m.weight_shape", DType::kI64, {2});
    if (!options.more.empty()) writer.declare(options.more, DType::kU8, {0});
    writer.begin();
    writer.write("m.weight_packed", std::as_bytes(std::span(packed)));
    if (options.with_scale && options.scale_dtype == DType::kBF16) {
      const std::vector<uint16_t> scales(12, float_to_bf16(options.scale));
      writer.write("m.weight_scale", std::as_bytes(std::span(scales)));
    } else if (options.with_scale) {
      const std::vector<int32_t> scales(12);
      writer.write("m.weight_scale", std::as_bytes(std::span(scales)));
    }
    const int64_t shape[] = {options.stored_rows, options.stored_cols};
    writer.write("m.weight_shape", std::as_bytes(std::span(shape)));
    writer.finish();
    return Checkpoint::open(folder_.path());
  }

  Error read_error(const json& quantization, const Options& options) {
    return error_of([&] { open_with(quantization, options).read_quantized("m"); });
  }

  TemporaryFolder folder_;
  std::vector<int8_t> values_;
};

TEST_F(QuantizedTest, ReadsValuesAndScales) {
  const Checkpoint checkpoint = open_with(quantization_config(), {});
  EXPECT_TRUE(checkpoint.is_quantized());
  const std::optional<QuantizedMatrix> matrix = checkpoint.read_quantized("m");
  ASSERT_TRUE(matrix.has_value());
  EXPECT_EQ(matrix->values, values_);
  EXPECT_EQ(matrix->scales, std::vector<float>(12, 0.5f));
  EXPECT_EQ(matrix->scale_dtype, DType::kBF16);
  EXPECT_EQ(matrix->bits, 4);
  EXPECT_EQ(matrix->group_size, 32);
  EXPECT_EQ(matrix->rows, 6);
  EXPECT_EQ(matrix->cols, 64);
  EXPECT_FALSE(checkpoint.read_quantized("other").has_value());
}

TEST_F(QuantizedTest, RefusesTensorsThatDisagree) {
  const json config = quantization_config();
  const auto expect = [&](const Options& options, std::initializer_list<std::string_view> parts,
                          ErrorKind kind = ErrorKind::kBadFile) {
    const Error error = read_error(config, options);
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"expected"})) << error.what();
  };
  expect({.stored_rows = 7}, {"'m.weight_packed' is I32 [6, 8]", "expected I32 [7, 8]"});
  expect({.stored_cols = 96}, {"expected I32 [6, 12]"});
  expect({.stored_cols = 65}, {"'m.weight_packed' is I32 [6, 8]", "expected I32 [6, 9]"});
  expect({.stored_rows = -6}, {"'m.weight_shape' holds [-6, 64]"});
  expect({.stored_rows = INT64_MAX}, {"'m.weight_shape' holds"});
  expect({.scale_dtype = DType::kI32}, {"'m.weight_scale' is I32 [6, 2]"});
  expect({.scale = std::numeric_limits<float>::infinity()}, {"'m.weight_scale' is not finite"});
  expect({.with_scale = false}, {"'m.weight_scale' is missing"});
  expect({.more = "m.weight"}, {"holds both 'm.weight' and"});
  expect({.more = "m.weight_zero_point"}, {"'m.weight_zero_point'"}, ErrorKind::kUnsupported);
  expect({.more = "m.weight_g_idx"}, {"'m.weight_g_idx' is U8 [0]", "expected I32 [64]"});
  json other_bits = config;
  other_bits["config_groups"]["group_0"] = group({"Linear"}, 8, 32);
  EXPECT_TRUE(is_one_line_with(read_error(other_bits, {}), {"expected I32 [6, 16]"}));
  json other_group = config;
  other_group["config_groups"]["group_0"] = group({"Linear"}, 4, 64);
  EXPECT_TRUE(is_one_line_with(read_error(other_group, {}), {"[6, 2]; expected", "[6, 1]"}));
  json ignored = config;
  ignored["ignore"] = {"re:m$"};
  EXPECT_TRUE(is_one_line_with(read_error(ignored, {}), {"'m.weight_packed' is I32, but"}));
  EXPECT_TRUE(is_one_line_with(read_error(nullptr, {}), {"'m.weight_packed' is I32, but"}));
}

/// A module of [6, 70] in groups of 32: the last has 6 columns.
class AsymmetricTest : public ::testing::Test {
 protected:
  AsymmetricTest() : values_(6 * 70), zero_points_(6 * 3) {
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = static_cast<int8_t>(i * 5 % 16) - 8;
    for (size_t i = 0; i < 18; ++i) zero_points_[i] = static_cast<int8_t>(i % 16) - 8;
  }

  /// `zero_points`: what is written, of that dtype and shape.
  template <typename T>
  Checkpoint open_with(DType dtype, std::vector<int64_t> shape, const std::vector<T>& zero_points) {
    json config = json::parse(testing::small_config());
    config["quantization_config"] = quantization_config();
    config["quantization_config"]["config_groups"]["group_0"] = group({"Linear"}, 4, 32, false);
    write_bytes(folder_ / "config.json", config.dump());
    SafetensorsWriter writer(folder_ / "model.safetensors");
    writer.declare("m.weight_packed", DType::kI32, {6, 9});
    writer.declare("m.weight_scale", DType::kF32, {6, 3});
    writer.declare("m.weight_shape", DType::kI64, {2});
    if (!shape.empty()) writer.declare("m.weight_zero_point", dtype, shape);
    const std::vector<int32_t> packed = pack_int32(values_, 6, 70, 4);
    const std::vector<float> scales(18, 0.25f);
    const int64_t extents[] = {6, 70};
    writer.begin();
    writer.write("m.weight_packed", std::as_bytes(std::span(packed)));
    writer.write("m.weight_scale", std::as_bytes(std::span(scales)));
    writer.write("m.weight_shape", std::as_bytes(std::span(extents)));
    if (!shape.empty()) {
      writer.write("m.weight_zero_point", std::as_bytes(std::span(zero_points)));
    }
    writer.finish();
    return Checkpoint::open(folder_.path());
  }

  TemporaryFolder folder_;
  std::vector<int8_t> values_, zero_points_;
};

TEST_F(AsymmetricTest, ReadsZeroPointsPackedOrPlain) {
  const auto packed = pack_int32_rows(zero_points_, 6, 3, 4);
  for (const Checkpoint& checkpoint :
       {open_with(DType::kI32, {1, 3}, packed), open_with(DType::kI8, {6, 3}, zero_points_)}) {
    EXPECT_FALSE(checkpoint.quantized_module("m")->symmetric);
    const std::optional<QuantizedMatrix> matrix = checkpoint.read_quantized("m");
    ASSERT_TRUE(matrix.has_value());
    EXPECT_EQ(matrix->groups(), 3);
    EXPECT_EQ(matrix->values, values_);
    EXPECT_EQ(matrix->zero_points, zero_points_);
    const std::vector<float> weights = dequantize_matrix(*matrix);
    for (size_t i = 0; i < weights.size(); ++i) {
      const int zero_point = zero_points_[i / 70 * 3 + i % 70 / 32];
      ASSERT_EQ(weights[i], 0.25f * static_cast<float>(values_[i] - zero_point)) << i;
    }
  }
}

// Any rows alone are those of the whole.
TEST_F(AsymmetricTest, ReadsRowsAlone) {
  const auto packed = pack_int32_rows(zero_points_, 6, 3, 4);
  for (const Checkpoint& checkpoint :
       {open_with(DType::kI32, {1, 3}, packed), open_with(DType::kI8, {6, 3}, zero_points_)}) {
    const std::optional<QuantizedTensors> tensors = checkpoint.find_quantized_tensors("m");
    ASSERT_TRUE(tensors.has_value());
    EXPECT_EQ(tensors->numbers->name, "m.weight_packed");
    EXPECT_EQ(tensors->cols, 70);
    for (int64_t begin = 0; begin < 6; ++begin) {
      for (int64_t end = begin; end <= 6; ++end) {
        EXPECT_EQ(
            checkpoint.read_quantized_zero_points(*tensors, begin, end),
            std::vector<int8_t>(zero_points_.begin() + 3 * begin, zero_points_.begin() + 3 * end));
        EXPECT_EQ(checkpoint.read_quantized_scales(*tensors, begin, end),
                  std::vector<float>(static_cast<size_t>(3 * (end - begin)), 0.25f));
      }
    }
  }
  EXPECT_FALSE(open_with(DType::kI32, {1, 3}, packed).find_quantized_tensors("n").has_value());
}

TEST_F(AsymmetricTest, RefusesZeroPointsThatDoNotFit) {
  const auto expect = [&](const Checkpoint& checkpoint,
                          std::initializer_list<std::string_view> parts) {
    const Error error = error_of([&] { checkpoint.read_quantized("m"); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"model.safetensors", "expected"})) << error.what();
  };
  const std::vector<int32_t> words(6);
  expect(open_with(DType::kI32, {2, 3}, words), {"'m.weight_zero_point' is I32 [2, 3]", "[1, 3]"});
  expect(open_with(DType::kI8, {3, 6}, zero_points_), {"I8 [3, 6]", "[6, 3]"});
  expect(open_with(DType::kF32, {6, 3}, std::vector<float>(18)), {"F32 [6, 3]"});
  zero_points_[4] = 8;
  expect(open_with(DType::kI8, {6, 3}, zero_points_), {"element 4", "is 8", "-8 to 7"});
  const Error error =
      error_of([&] { open_with(DType::kI8, {}, zero_points_).read_quantized("m"); });
  EXPECT_TRUE(is_one_line_with(error, {"'m.weight_zero_point'"})) << error.what();
}

TEST_F(QuantizedTest, FindsTheGroupAsCompressedTensorsDoes) {
  json config = quantization_config();
  config["config_groups"]["group_1"] = group({"re:.*self_attn.*"}, 8, 64);
  config["config_groups"]["group_2"] =
      group({"model.layers.0.self_attn.q_proj", "lm_head"}, 8, 128);
  config["ignore"] = {"re:.*\\.gate$", "model.layers.1.self_attn.q_proj"};
  const Checkpoint checkpoint = open_with(config, {});
  const auto scheme = [&](const char* name) {
    const auto found = checkpoint.quantized_module(name);
    return found ? std::pair(found->bits, found->group_size) : std::pair(0, 0);
  };
  EXPECT_EQ(scheme("model.layers.0.mlp.up_proj"), std::pair(4, 32));
  EXPECT_EQ(scheme("model.layers.0.self_attn.k_proj"), std::pair(8, 64));
  EXPECT_EQ(scheme("model.layers.0.self_attn.q_proj"), std::pair(8, 128));
  EXPECT_EQ(scheme("lm_head"), std::pair(8, 128));
  EXPECT_EQ(scheme("model.layers.0.mlp.gate"), std::pair(0, 0));
  EXPECT_EQ(scheme("model.layers.1.self_attn.q_proj"), std::pair(0, 0));
}

TEST_F(QuantizedTest, RefusesSchemesThatItCannotRead) {
  const auto expect = [&](const char* pointer, const json& value, ErrorKind kind,
                          std::initializer_list<std::string_view> parts) {
    json config = quantization_config();
    config[json::json_pointer(pointer)] = value;
    const Error error = error_of([&] { open_with(config, {}); });
    EXPECT_EQ(error.kind(), kind) << pointer << ": " << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"config.json", "quantization_config", "expected"}))
        << error.what();
  };
  for (const char* method : {"marlin", "exl3", "bitsandbytes", "hqq", "torchao"}) {
    expect("/quant_method", method, ErrorKind::kUnsupported, {method, "which", "expected"});
  }
  const std::string weights = "/config_groups/group_0/weights/";
  const auto unsupported = ErrorKind::kUnsupported;
  const auto bad = ErrorKind::kBadFile;
  expect("/quant_method", "quip", unsupported, {"'quant_method' is 'quip'"});
  expect("/quant_method", nullptr, unsupported, {"'quant_method' is missing"});
  expect("/format", "nvfp4-pack-quantized", unsupported, {"'type' is 'int'"});
  expect("/format", "marlin-24", unsupported, {"'format' is 'marlin-24'", "llm-compressor"});
  expect("/format", "float-quantized", unsupported, {"'num_bits' is 4"});
  expect("/format", 3, bad, {"'format' is 3"});
  expect("/quantization_status", "calibration", unsupported, {"'calibration'"});
  expect("/sparsity_config", {{"format", "sparse-bitmask"}}, unsupported, {"sparsity_config"});
  expect("/transform_config", {{"config_groups", 1}}, unsupported,
         {"'transform_config'", "without transforms"});
  expect("/config_groups", nullptr, bad, {"'config_groups' is missing"});
  expect("/config_groups/group_0", 3, bad, {"'group_0'"});
  expect("/config_groups/group_0", {"Linear"}, unsupported, {"'group_0'", "preset"});
  expect("/config_groups/group_0/targets", json::array(), bad, {"'targets'"});
  expect("/config_groups/group_0/targets", {"re:(("}, bad, {"'re:(('", "can't be compiled"});
  expect("/config_groups/group_0/weights", nullptr, bad, {"'weights' is missing"});
  expect("/config_groups/group_0/output_activations", {{"num_bits", 8}}, unsupported,
         {"'output_activations'"});
  expect((weights + "num_bits").c_str(), 9, unsupported, {"'num_bits' is 9"});
  expect((weights + "num_bits").c_str(), "4", bad, {"'num_bits' is '4'"});
  expect((weights + "type").c_str(), "float", unsupported, {"'type' is 'float'"});
  expect((weights + "symmetric").c_str(), 1, bad, {"'symmetric' is 1"});
  expect((weights + "strategy").c_str(), "tensor", unsupported, {"'strategy' is 'tensor'"});
  expect((weights + "group_size").c_str(), 0, bad, {"'group_size' is 0"});
  expect((weights + "group_size").c_str(), int64_t{1} << 40, bad, {"'group_size'"});
  expect((weights + "dynamic").c_str(), true, unsupported, {"'dynamic' is true"});
  expect((weights + "actorder").c_str(), "random", unsupported, {"'actorder' is 'random'"});
  expect("/ignore", "lm_head", bad, {"'ignore'"});
  expect("/ignore", {1}, bad, {"'ignore'"});
}

TEST_F(QuantizedTest, StopsAnExpressionThatTakesTooLong) {
  json config = quantization_config();
  config["ignore"] = {"re:(a+)+$"};
  const Checkpoint checkpoint = open_with(config, {});
  const Error error = error_of([&] { checkpoint.quantized_module(std::string(60, 'a') + "b"); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(error, {"config.json", "'re:(a+)+$'", "too many steps"}));
}

}  // namespace
}  // namespace vitrine
