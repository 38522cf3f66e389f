// SPDX-License-Identifier: Apache-2.0
// Modules of 8-bit floats: every way in which scales stand beside them, and what is refused.
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "folders.h"

namespace vitrine {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::is_one_line_with;
using testing::TemporaryFolder;
using testing::write_bytes;

constexpr int64_t kRows = 5, kCols = 300;

json compressed(json weights) {
  weights["num_bits"] = 8;
  weights["type"] = "float";
  weights["symmetric"] = true;
  weights["dynamic"] = false;
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"config_groups",
           {{"group_0",
             {{"targets", {"Linear"}},
              {"weights", weights},
              {"input_activations",
               {{"num_bits", 8}, {"type", "float"}, {"strategy", "token"}, {"dynamic", true}}}}}}},
          {"ignore", {"lm_head"}}};
}

json fine_grained(const json& block) {
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", block}};
}

class Float8Test : public ::testing::Test {
 protected:
  Float8Test() {
    for (int i = 0; i < kRows * kCols; ++i) {
      const int code = i * 37 % 255;
      codes_.push_back(static_cast<uint8_t>((code & 0x7f) == 0x7f ? 0 : code));
    }
  }

  /// A folder with one module "m" whose scales are 0.25, 0.5, … in a tensor of that shape.
  Checkpoint open_with(const json& quantization, const std::vector<int64_t>& scale_shape,
                       const std::string& suffix = "weight_scale") {
    json config = json::parse(testing::small_config());
    if (!quantization.is_null()) config["quantization_config"] = quantization;
    write_bytes(folder_ / "config.json", config.dump());
    int64_t count = 1;
    for (const int64_t extent : scale_shape) count *= extent;
    std::vector<float> scales;
    for (int64_t i = 0; i < count; ++i) scales.push_back(0.25f * static_cast<float>(i + 1));
    if (!scales.empty()) scales.back() *= last_scale_;
    SafetensorsWriter writer(folder_ / "model.safetensors");
    writer.declare("m.weight", DType::kF8E4M3, {kRows, kCols});
    writer.declare("m." + suffix, DType::kF32, scale_shape);
    writer.begin();
    writer.write("m.weight", std::as_bytes(std::span(codes_)));
    writer.write("m." + suffix, std::as_bytes(std::span(scales)));
    writer.finish();
    return Checkpoint::open(folder_.path());
  }

  /// Every weight is its float times the scale that `scale_index` says.
  template <typename ScaleIndex>
  void expect_weights(const Checkpoint& checkpoint, ScaleIndex scale_index) {
    const std::optional<QuantizedMatrix> matrix = checkpoint.read_quantized("m");
    ASSERT_TRUE(matrix.has_value());
    EXPECT_EQ(matrix->number_format, NumberFormat::kE4M3);
    const std::vector<float> weights = dequantize_matrix(*matrix);
    ASSERT_EQ(weights.size(), codes_.size());
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t col = 0; col < kCols; ++col) {
        const auto i = static_cast<size_t>(row * kCols + col);
        const float scale = 0.25f * static_cast<float>(scale_index(row, col) + 1);
        ASSERT_EQ(weights[i], e4m3_to_float(codes_[i]) * scale) << row << ", " << col;
      }
    }
    // Any rows alone are those of the whole.
    const QuantizedTensors tensors = checkpoint.find_quantized_tensors("m").value();
    const int64_t groups = matrix->groups();
    for (int64_t begin = 0; begin < kRows; ++begin) {
      for (int64_t end = begin + 1; end <= kRows; ++end) {
        EXPECT_EQ(checkpoint.read_quantized_scales(tensors, begin, end),
                  std::vector<float>(matrix->scales.begin() + groups * begin,
                                     matrix->scales.begin() + groups * end))
            << begin << ", " << end;
      }
    }
  }

  void expect_error(const json& quantization, const std::vector<int64_t>& scale_shape,
                    std::initializer_list<std::string_view> parts,
                    ErrorKind kind = ErrorKind::kBadFile,
                    const std::string& suffix = "weight_scale") {
    const Error error =
        error_of([&] { open_with(quantization, scale_shape, suffix).read_quantized("m"); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"expected"})) << error.what();
  }

  TemporaryFolder folder_;
  std::vector<uint8_t> codes_;
  float last_scale_ = 1.0f;
};

TEST_F(Float8Test, ReadsEveryArrangementOfScales) {
  const auto one = [](int64_t, int64_t) { return 0; };
  const auto by_row = [](int64_t row, int64_t) { return row; };
  const json tensor = compressed({{"strategy", "tensor"}});
  expect_weights(open_with(tensor, {}), one);
  expect_weights(open_with(tensor, {1}), one);
  expect_weights(open_with(tensor, {1, 1}), one);
  const json channel = compressed({{"strategy", "channel"}});
  expect_weights(open_with(channel, {kRows, 1}), by_row);
  expect_weights(open_with(channel, {kRows}), by_row);
  expect_weights(open_with(compressed({{"strategy", "group"}, {"group_size", 128}}), {kRows, 3}),
                 [](int64_t row, int64_t col) { return row * 3 + col / 128; });
  const auto blocks = [](int64_t row, int64_t col) { return row / 2 * 2 + col / 256; };
  expect_weights(
      open_with(compressed({{"strategy", "block"}, {"block_structure", {2, 256}}}), {3, 2}),
      blocks);
  expect_weights(open_with(fine_grained({2, 256}), {3, 2}, "weight_scale_inv"), blocks);
  expect_weights(open_with(fine_grained(nullptr), {}), one);
  expect_weights(open_with(fine_grained(nullptr), {}, "weight_scale_inv"), one);
}

TEST_F(Float8Test, SaysHowAModuleIsStored) {
  const Checkpoint checkpoint = open_with(fine_grained({128, 128}), {1, 3}, "weight_scale_inv");
  EXPECT_TRUE(checkpoint.is_quantized());
  const std::optional<QuantizedModule> module = checkpoint.quantized_module("m");
  ASSERT_TRUE(module.has_value());
  EXPECT_EQ(module->number_format, NumberFormat::kE4M3);
  EXPECT_EQ(module->block_rows, 128);
  EXPECT_EQ(module->group_size, 128);
  ASSERT_NE(checkpoint.find_quantized("m"), nullptr);
  EXPECT_EQ(checkpoint.find_quantized("m")->name, "m.weight");
  EXPECT_EQ(checkpoint.find_quantized("other"), nullptr);
}

TEST_F(Float8Test, RefusesWhatDisagrees) {
  const json channel = compressed({{"strategy", "channel"}});
  expect_error(channel, {kRows + 1, 1}, {"'m.weight_scale' is F32 [6, 1]", "[5, 1]"});
  expect_error(channel, {1, kRows}, {"'m.weight_scale' is F32 [1, 5]"});
  expect_error(compressed({{"strategy", "tensor"}}), {2}, {"'m.weight_scale' is F32 [2]", "[1]"});
  expect_error(fine_grained({2, 256}), {3, 2}, {"'m.weight_scale_inv' is missing"});
  expect_error(fine_grained({2, 256}), {2, 3}, {"F32 [2, 3]", "[3, 2]"}, ErrorKind::kBadFile,
               "weight_scale_inv");
  expect_error(nullptr, {kRows, 1}, {"'m.weight' is F8_E4M3, but quantization_config"});
  json ignored = channel;
  ignored["ignore"] = {"m"};
  expect_error(ignored, {kRows, 1}, {"'m.weight' is F8_E4M3", "leaves the module out"});
  last_scale_ = std::numeric_limits<float>::infinity();
  expect_error(channel, {kRows, 1}, {"element 4 of tensor 'm.weight_scale' is not finite"});
  last_scale_ = 1.0f;
  codes_[77] = 0xff;
  expect_error(channel, {kRows, 1}, {"element 77 of tensor 'm.weight' is NaN"});
}

TEST_F(Float8Test, WidensBlocksThatNoKernelReads) {
  const Checkpoint checkpoint =
      open_with(compressed({{"strategy", "group"}, {"group_size", 64}}), {kRows, 5});
  const auto tensors = checkpoint.find_quantized_tensors("m");
  EXPECT_EQ(tensors->floats, DType::kF32);
  EXPECT_NE(tensors->runs_as().find("no multiple of 128 columns"), std::string::npos);
  const std::vector<float> rows = checkpoint.read_quantized_floats(*tensors, 0, kRows);
  const std::vector<float> scales = checkpoint.read_quantized_scales(*tensors, 0, kRows);
  ASSERT_EQ(scales.size(), static_cast<size_t>(kRows * 5));
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto row = i / static_cast<size_t>(tensors->cols);
    const auto group = i % static_cast<size_t>(tensors->cols) / 64;
    EXPECT_EQ(rows[i], e4m3_to_float(codes_[i]) * scales[row * 5 + group]);
  }
}

TEST_F(Float8Test, RefusesSchemesThatItCannotRead) {
  const auto unsupported = ErrorKind::kUnsupported;
  expect_error(compressed({{"strategy", "token"}}), {1}, {"'strategy' is 'token'"}, unsupported);
  expect_error(compressed(json::object()), {1}, {"'strategy' is missing"}, unsupported);
  expect_error(compressed({{"strategy", "block"}}), {1}, {"'block_structure' is missing"});
  expect_error(fine_grained({128}), {1, 3}, {"'weight_block_size'", "two sizes"});
  expect_error(fine_grained("128"), {1, 3}, {"'weight_block_size' is '128'"});
  json other = fine_grained({128, 128});
  other["fmt"] = "e5m2";
  expect_error(other, {1, 3}, {"'fmt' is 'e5m2'"}, unsupported);
  json four = compressed({{"strategy", "channel"}});
  four["config_groups"]["group_0"]["weights"]["num_bits"] = 4;
  expect_error(four, {kRows, 1}, {"'num_bits' is 4"}, unsupported);
  json integer = compressed({{"strategy", "channel"}});
  integer["config_groups"]["group_0"]["weights"]["type"] = "int";
  expect_error(integer, {kRows, 1}, {"'type' is 'int'"}, unsupported);
  // Groups of integers beside a matrix of floats.
  json packed = compressed({{"strategy", "group"}, {"group_size", 32}});
  packed["format"] = "pack-quantized";
  packed["config_groups"]["group_0"]["weights"]["type"] = "int";
  packed["config_groups"]["group_0"]["input_activations"] = nullptr;
  expect_error(packed, {kRows, 1}, {"'m.weight' is F8_E4M3", "says otherwise"});
}

}  // namespace
}  // namespace vitrine
