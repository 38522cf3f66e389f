// SPDX-License-Identifier: Apache-2.0
// GPTQ, AWQ and other layouts whose tensors do not fit each other or their config, and what the
// configs say of modules.
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "stored_tensors.h"
#include "vitrine/quant.h"

namespace vitrine {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::is_one_line_with;
using testing::stored;
using testing::StoredTensor;
using testing::StoredTensors;
using testing::write_stored;

/// A module "m" of [32, 64] in groups of 32: numbers 1, 2, 3, … of 4 bits.
StoredTensors gptq_module() {
  const uint16_t one = float_to_f16(1.0f);
  std::vector<int32_t> groups(64);
  for (int i = 0; i < 64; ++i) groups[static_cast<size_t>(i)] = i / 32;
  return {{"m.qweight", stored(DType::kI32, {8, 32}, std::vector<int32_t>(256, 0x07654321))},
          {"m.qzeros", stored(DType::kI32, {2, 4}, std::vector<int32_t>(8, 0x77777777))},
          {"m.scales", stored(DType::kF16, {2, 32}, std::vector<uint16_t>(64, one))},
          {"m.g_idx", stored(DType::kI32, {64}, groups)}};
}

json gptq_config() {
  return {{"quant_method", "gptq"},
          {"bits", 4},
          {"group_size", 32},
          {"sym", true},
          {"desc_act", false}};
}

StoredTensors awq_module() {
  const uint16_t one = float_to_f16(1.0f);
  return {{"m.qweight", stored(DType::kI32, {64, 4}, std::vector<int32_t>(256, 0x76543210))},
          {"m.qzeros", stored(DType::kI32, {2, 4}, std::vector<int32_t>(8, 0))},
          {"m.scales", stored(DType::kF16, {2, 32}, std::vector<uint16_t>(64, one))}};
}

json awq_config() {
  return {{"quant_method", "awq"},
          {"bits", 4},
          {"group_size", 32},
          {"version", "gemm"},
          {"zero_point", true}};
}

class LayoutTest : public ::testing::Test {
 protected:
  Checkpoint open(const json& quantization, const StoredTensors& tensors) {
    json config = json::parse(testing::small_config());
    config["quantization_config"] = quantization;
    testing::write_bytes(folder_ / "config.json", config.dump());
    write_stored(folder_ / "model.safetensors", tensors);
    return Checkpoint::open(folder_.path());
  }

  void expect_error(const json& quantization, const StoredTensors& tensors,
                    std::initializer_list<std::string_view> parts,
                    ErrorKind kind = ErrorKind::kBadFile) {
    const Error error = error_of([&] {
      const Checkpoint checkpoint = open(quantization, tensors);
      const auto found = checkpoint.find_quantized_tensors("m");
      checkpoint.read_quantized_floats(*found, 0, found->rows);
    });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"expected"})) << error.what();
  }

  testing::TemporaryFolder folder_;
};

TEST_F(LayoutTest, AddsOneToEachZeroPointByItself) {
  json config = gptq_config();
  config["sym"] = false;
  StoredTensors tensors = gptq_module();
  tensors["m.qzeros"] =
      stored(DType::kI32, {2, 4}, std::vector<int32_t>(8, static_cast<int32_t>(0xf0123fef)));
  const Checkpoint checkpoint = open(config, tensors);
  const auto found = checkpoint.find_quantized_tensors("m");
  const std::vector<int8_t> zeros = checkpoint.read_quantized_zero_points(*found, 0, 8);
  const int expected[] = {0, 15, 0, 4, 3, 2, 1, 0};
  for (size_t row = 0; row < 8; ++row) EXPECT_EQ(zeros[2 * row] + 8, expected[row]) << row;
  // GPTQModel takes ones from whole words, and adds them so: a carry goes to the next field.
  config["meta"] = {{"quantizer", {"gptqmodel:7.3.4"}}};
  const Checkpoint other = open(config, tensors);
  const std::vector<int8_t> carried =
      other.read_quantized_zero_points(*other.find_quantized_tensors("m"), 0, 8);
  const uint32_t word = 0xf0123fefU + 0x11111111U;
  for (size_t row = 0; row < 8; ++row) {
    EXPECT_EQ(carried[2 * row] + 8, static_cast<int>(word >> (4 * row) & 15)) << row;
  }
}

TEST_F(LayoutTest, RefusesGptqTensorsThatDisagree) {
  const auto with = [](const char* name, const StoredTensor& tensor) {
    StoredTensors tensors = gptq_module();
    tensors[name] = tensor;
    return tensors;
  };
  const json config = gptq_config();
  expect_error(config, with("m.qweight", stored(DType::kI32, {7, 32}, std::vector<int32_t>(224))),
               {"model.safetensors", "'m.g_idx' is I32 [64]", "[56]"});
  expect_error(config, with("m.qweight", stored(DType::kU8, {8, 32}, std::vector<uint8_t>(256))),
               {"'m.qweight' is U8 [8, 32]", "expected I32"});
  expect_error(config, with("m.scales", stored(DType::kF16, {1, 32}, std::vector<uint16_t>(32))),
               {"'m.scales' is F16 [1, 32]", "[2, 32] from quantization_config"});
  expect_error(config, with("m.qzeros", stored(DType::kI32, {2, 3}, std::vector<int32_t>(6))),
               {"'m.qzeros' is I32 [2, 3]", "I32 [2, 4]"});
  expect_error(config,
               with("m.qzeros", stored(DType::kI32, {2, 4}, std::vector<int32_t>(8, 0x76777777))),
               {"zero point of group 0 and row 6", "'m.qzeros' is 7", "'sym' is true"});
  const uint16_t infinite = float_to_f16(std::numeric_limits<float>::infinity());
  expect_error(config,
               with("m.scales", stored(DType::kF16, {2, 32}, std::vector<uint16_t>(64, infinite))),
               {"'m.scales' is not finite"});
  std::vector<int32_t> groups(64);
  groups[5] = 2;
  expect_error(config, with("m.g_idx", stored(DType::kI32, {64}, groups)),
               {"element 5 of tensor 'm.g_idx' is 2", "one of the 2 groups"});
  groups[5] = -3;
  expect_error(config, with("m.g_idx", stored(DType::kI32, {64}, groups)), {"is -3"});
  StoredTensors without = gptq_module();
  without.erase("m.scales");
  expect_error(config, without, {"'m.scales' is missing"});
  json left_out = config;
  left_out["dynamic"] = {{"-:m$", json::object()}};
  expect_error(left_out, gptq_module(), {"'m.qweight' is I32", "leaves the module out"});
  expect_error(awq_config(), gptq_module(), {"'m.scales' is F16 [2, 32]", "[1, 256]"});
  json packed = {{"quant_method", "fp8"}};
  expect_error(packed, gptq_module(), {"'m.qweight' is I32", "says otherwise", "fp8"});
}

TEST_F(LayoutTest, SortsTheColumnsOfGroupsThatAreWhole) {
  const auto runs_as = [&](const std::vector<int32_t>& groups) {
    StoredTensors tensors = gptq_module();
    tensors["m.g_idx"] = stored(DType::kI32, {64}, groups);
    const auto found = open(gptq_config(), tensors).find_quantized_tensors("m");
    EXPECT_EQ(found->floats, DType::kF32);
    return found->runs_as();
  };
  std::vector<int32_t> groups(64);
  for (size_t i = 0; i < 64; ++i) groups[i] = static_cast<int32_t>(i % 2);
  EXPECT_EQ(runs_as(groups), "int4, groups of 32, sorted by g_idx");
  groups[1] = 0;
  EXPECT_EQ(runs_as(groups), "f32: no kernel reads its groups of unlike sizes (g_idx)");
}

/// A gate and an up run in one kernel, which takes one input.
TEST_F(LayoutTest, SortsAGateAndAnUpAlike) {
  StoredTensors tensors;
  for (const char* module : {"m.gate_proj", "m.up_proj"}) {
    for (const auto& [name, tensor] : gptq_module()) tensors[module + name.substr(1)] = tensor;
  }
  std::vector<int32_t> groups(64);
  for (size_t i = 0; i < 64; ++i) groups[i] = static_cast<int32_t>(i / 2 % 2);
  const StoredTensor order = stored(DType::kI32, {64}, groups);
  std::ranges::reverse(groups);
  const StoredTensor other = stored(DType::kI32, {64}, groups);
  const auto runs_as = [&](const Checkpoint& checkpoint) {
    return checkpoint.find_quantized_tensors("m.gate_proj")->runs_as() + "; " +
           checkpoint.find_quantized_tensors("m.up_proj")->runs_as();
  };
  tensors["m.gate_proj.g_idx"] = tensors["m.up_proj.g_idx"] = order;
  const std::string sorted = "int4, groups of 32, sorted by g_idx";
  EXPECT_EQ(runs_as(open(gptq_config(), tensors)), sorted + "; " + sorted);
  tensors["m.up_proj.g_idx"] = other;
  const std::string unlike = "f32: no kernel reads gate and up of unlike column orders or groups";
  EXPECT_EQ(runs_as(open(gptq_config(), tensors)), unlike + "; " + unlike);
}

TEST_F(LayoutTest, RefusesAwqTensorsThatDisagree) {
  const auto with = [](const char* name, const StoredTensor& tensor) {
    StoredTensors tensors = awq_module();
    tensors[name] = tensor;
    return tensors;
  };
  expect_error(awq_config(), with("m.qzeros", stored(DType::kI32, {1, 4}, std::vector<int32_t>(4))),
               {"'m.qzeros' is I32 [1, 4]", "[2, 4]"});
  expect_error(awq_config(),
               with("m.qweight", stored(DType::kI32, {256}, std::vector<int32_t>(256))),
               {"'m.qweight' is I32 [256]"});
  json config = awq_config();
  config["group_size"] = 128;
  expect_error(config, awq_module(), {"'m.scales' is F16 [2, 32]", "[1, 32]"});
  config["modules_to_not_convert"] = {"m"};
  expect_error(config, awq_module(), {"leaves the module out"});
}

TEST_F(LayoutTest, NamesWhatWritesAnotherFormat) {
  const auto expect = [&](json config, const char* field, const json& value,
                          std::initializer_list<std::string_view> parts) {
    config[field] = value;
    expect_error(config, {}, parts, ErrorKind::kUnsupported);
  };
  expect(gptq_config(), "checkpoint_format", "marlin",
         {"'checkpoint_format' is 'marlin'", "GPTQModel"});
  expect(gptq_config(), "is_marlin_format", true, {"'is_marlin_format'", "GPTQModel"});
  expect(gptq_config(), "bits", 9, {"'bits' is 9"});
  for (const char* version : {"gemv", "gemv_fast", "llm-awq", "marlin"}) {
    expect(awq_config(), "version", version, {version, "AutoAWQForCausalLM"});
  }
  expect(awq_config(), "bits", 8, {"'bits' is 8"});
  const json round = {{"quant_method", "auto-round"}, {"bits", 4}, {"group_size", 32}};
  expect(round, "packing_format", "auto_round:mlx", {"'packing_format'", "auto_round"});
  expect(round, "data_type", "mx_fp4", {"'data_type'", "llm_compressor"});
  const json modelopt = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}};
  expect(modelopt, "quant_algo", "W4A8_AWQ", {"'quant_algo'", "hf_ptq.py"});
}

TEST_F(LayoutTest, SaysWhichGroupsItRunsWith) {
  const auto runs_as = [&](int group_size) {
    json config = awq_config();
    config["group_size"] = group_size;
    StoredTensors tensors = awq_module();
    const int64_t groups = group_size == -1 ? 1 : (64 + group_size - 1) / group_size;
    const auto count = static_cast<size_t>(groups);
    tensors["m.qzeros"] = stored(DType::kI32, {groups, 4}, std::vector<int32_t>(4 * count));
    tensors["m.scales"] = stored(DType::kF16, {groups, 32}, std::vector<uint16_t>(32 * count));
    return open(config, tensors).find_quantized_tensors("m")->runs_as();
  };
  EXPECT_EQ(runs_as(32), "int4, groups of 32, with zero points");
  EXPECT_EQ(runs_as(-1), "int4, groups of 64, with zero points");  // whole rows
  EXPECT_EQ(runs_as(24), "f32: no kernel reads its groups, which are no multiple of 32 columns");
}

}  // namespace
}  // namespace vitrine
