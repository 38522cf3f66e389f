// SPDX-License-Identifier: Apache-2.0
// Folders of 4-bit floats: what is read back, as floats and as blocks; how they run; and damage.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "tests/compress/model_divergence.h"
#include "vitrine/quant.h"

namespace vitrine::testing {
namespace {

const std::string kModule = "model.layers.0.self_attn.q_proj";

std::string quantized(const char* scheme, const std::string& folder) {
  QuantizeOptions options;
  options.scheme = scheme;
  quantize_checkpoint(oracle_folder("qwen3_moe"), folder, options);
  return folder;
}

TEST(SmallFloats, AreReadBackAsTheyWereMade) {
  const Checkpoint source = Checkpoint::open(oracle_folder("qwen3_moe"));
  const TensorInfo& info = source.require(kModule + ".weight");
  const std::vector<float> weights = source.read_f32(info);
  float largest = 0;  // of queries, keys and values, which share what divides NVFP4's scales
  for (const char* module : {"q_proj", "k_proj", "v_proj"}) {
    const std::string name = std::string("model.layers.0.self_attn.") + module + ".weight";
    for (const float weight : source.read_f32(source.require(name))) {
      largest = std::max(largest, std::fabs(weight));
    }
  }
  for (const char* scheme : {"nvfp4", "mxfp4", "int8-w8a8", "fp8-dynamic"}) {
    SCOPED_TRACE(scheme);
    const TemporaryFolder folder;
    const Checkpoint result = Checkpoint::open(quantized(scheme, folder / "out"));
    const QuantMethod& method = find_quant_method(scheme);
    const int64_t rows = info.shape[0], cols = info.shape[1];
    const QuantizedMatrix matrix =
        method.quantize_part != nullptr
            ? method.quantize_part(weights, rows, cols, info.dtype, largest)
            : method.quantize(weights, rows, cols, info.dtype, 32);
    const std::vector<float> made = dequantize_matrix(matrix);
    std::vector<float> found;
    if (const auto tensors = result.find_quantized_tensors(kModule)) {
      found = result.read_quantized_floats(*tensors, 0, tensors->rows);
    } else {
      found = result.read_f32(result.require(kModule + ".weight"));  // blocks of MXFP4
    }
    ASSERT_EQ(found.size(), made.size());
    double wrong = 0, all = 0;
    for (size_t i = 0; i < made.size(); ++i) {
      EXPECT_NEAR(found[i], made[i], 1e-6f * std::fabs(made[i])) << i;
      wrong += std::pow(static_cast<double>(found[i]) - weights[i], 2);
      all += std::pow(static_cast<double>(weights[i]), 2);
    }
    EXPECT_LT(wrong, 0.02 * all);
  }
}

TEST(SmallFloats, BlocksHoldWhatFloatsDo) {
  const TemporaryFolder folder;
  const Checkpoint result = Checkpoint::open(quantized("nvfp4", folder / "out"));
  size_t with_blocks = 0;
  for (const TensorInfo& info : result.tensors()) {
    if (!info.name.ends_with(".weight_packed")) continue;
    const std::string module = info.name.substr(0, info.name.rfind('.'));
    const auto tensors = result.find_quantized_tensors(module);
    ASSERT_TRUE(tensors.has_value()) << module;
    EXPECT_EQ(tensors->blocks != nullptr, tensors->cols % 64 == 0) << module;
    if (tensors->blocks == nullptr) continue;
    ++with_blocks;
    EXPECT_EQ(tensors->runs_as(), "NVFP4");
    // Rows from the middle: their blocks begin where they should.
    const int64_t first = tensors->rows / 3, end = tensors->rows - 1;
    const std::vector<float> floats = result.read_quantized_floats(*tensors, first, end);
    const std::vector<std::byte> blocks = result.read_quantized_blocks(*tensors, first, end);
    std::vector<float> values(floats.size());
    const auto count = std::ssize(values) / tensors->blocks->block_size;
    ASSERT_EQ(std::ssize(blocks), count * tensors->blocks->block_bytes);
    tensors->blocks->dequantize(blocks.data(), count, values.data());
    for (size_t i = 0; i < floats.size(); ++i) {
      EXPECT_NEAR(values[i] * tensors->multiplier, floats[i], 1e-6f * std::fabs(floats[i]));
    }
  }
  EXPECT_GT(with_blocks, 0u);
}

TEST(SmallFloats, RunAsBlocksOnAnyThreadsAndInChunks) {
  const TemporaryFolder folder;
  const std::string model = quantized("nvfp4", folder / "out");
  EngineOptions options = test_options();
  options.keep_logits = true;
  std::vector<std::vector<float>> last;
  for (const int threads : {1, 2}) {
    for (const size_t chunk : {size_t{1}, size_t{7}, size_t{64}}) {
      options.threads = threads;
      const auto engine = Engine::load(model, options);
      const std::vector<int32_t> ids = prompt_ids(40, engine->summary().vocab_size, 5);
      StepInput input;
      input.sequence = engine->create_sequence();
      for (size_t at = 0; at < ids.size(); at += chunk) {
        input.tokens = std::span(ids).subspan(at, std::min(chunk, ids.size() - at));
        const auto outputs = engine->step({&input, 1});
        if (at + chunk < ids.size()) continue;
        last.emplace_back(outputs.back().scores.begin(), outputs.back().scores.end());
      }
    }
  }
  for (const std::vector<float>& logits : last) EXPECT_EQ(logits, last.front());
  const auto engine = Engine::load(model, options);
  const auto plan = engine->plan();
  EXPECT_TRUE(std::ranges::any_of(plan, [](const PlanEntry& entry) {
    return entry.kernel.find("nvfp4") != std::string::npos;
  }));
}

/// Writes a byte into a tensor of a folder.
void put_byte(const std::string& model, const std::string& tensor, int64_t at, char byte) {
  const TensorInfo info = Checkpoint::open(model).require(tensor);
  std::fstream file(model + "/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(info.file_offset) + at);
  file.put(byte);
}

TEST(SmallFloats, BlocksComputeWhatFloatsDo) {
  const std::string source = oracle_folder("qwen3_moe");
  const TemporaryFolder folder;
  const std::string model = quantized("nvfp4", folder / "out");
  // The same numbers as floats: a folder of what each module holds.
  const Checkpoint checkpoint = Checkpoint::open(model), plain = Checkpoint::open(source);
  std::filesystem::create_directory(folder / "floats");
  for (const auto& entry : std::filesystem::directory_iterator(source)) {
    if (entry.path().extension() == ".safetensors") continue;
    std::filesystem::copy(entry.path(), folder / ("floats/" + entry.path().filename().string()));
  }
  SafetensorsWriter writer(folder / "floats/model.safetensors");
  for (const TensorInfo& info : plain.tensors()) writer.declare(info.name, DType::kF32, info.shape);
  writer.begin({{"format", "pt"}});
  for (const TensorInfo& info : plain.tensors()) {
    const std::string module = info.name.substr(0, info.name.rfind('.'));
    std::vector<float> values = plain.read_f32(info);
    if (const auto tensors = checkpoint.find_quantized_tensors(module)) {
      values = checkpoint.read_quantized_floats(*tensors, 0, tensors->rows);
    }
    writer.write(info.name, std::as_bytes(std::span(values)));
  }
  writer.finish();
  const double as_blocks = model_divergence(folder / "floats", model);
  EXPECT_LT(as_blocks, 0.1 * model_divergence(source, model));  // activations of 8 bits are left
}

TEST(SmallFloats, ExpertsAreReadWhenTheyAreNeeded) {
  const TemporaryFolder folder;
  const std::string model = quantized("nvfp4", folder / "out");
  EngineOptions options = test_options();
  options.keep_logits = true;
  std::vector<std::vector<float>> logits;
  for (const uint64_t cache : {uint64_t{0}, uint64_t{1} << 20}) {
    options.expert_cache_bytes = cache;
    const auto engine = Engine::load(model, options);
    const std::vector<int32_t> ids = prompt_ids(12, engine->summary().vocab_size, 5);
    StepInput input;
    input.sequence = engine->create_sequence();
    input.tokens = ids;
    const auto outputs = engine->step({&input, 1});
    logits.emplace_back(outputs.back().scores.begin(), outputs.back().scores.end());
  }
  EXPECT_EQ(logits[0], logits[1]);
}

TEST(SmallFloats, SignsOfScalesCountAndNaNIsRefused) {
  const TemporaryFolder folder;
  const std::string model = quantized("nvfp4", folder / "out");
  put_byte(model, kModule + ".weight_scale", 5, '\xb8');  // -1
  const Checkpoint checkpoint = Checkpoint::open(model);
  const auto tensors = checkpoint.find_quantized_tensors(kModule);
  const std::vector<float> floats = checkpoint.read_quantized_floats(*tensors, 0, 4);
  const std::vector<std::byte> blocks = checkpoint.read_quantized_blocks(*tensors, 0, 4);
  std::vector<float> values(floats.size());
  tensors->blocks->dequantize(blocks.data(), std::ssize(values) / 64, values.data());
  for (size_t i = 0; i < floats.size(); ++i) {
    EXPECT_NEAR(values[i] * tensors->multiplier, floats[i], 1e-6f * std::fabs(floats[i])) << i;
  }
  put_byte(model, kModule + ".weight_scale", 5, '\xff');
  const Error error = error_of([&] { Engine::load(model, test_options()); });
  EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
  EXPECT_TRUE(is_one_line_with(error, {"model.safetensors", "element 5", kModule + ".weight_scale",
                                       "NaN", "expected a number"}))
      << error.what();
}

TEST(SmallFloats, AFactorWithoutAnInverseIsRefused) {
  const TemporaryFolder folder;
  const std::string model = quantized("nvfp4", folder / "out");
  for (int64_t byte = 0; byte < 4; ++byte) {  // a denormal
    put_byte(model, kModule + ".weight_global_scale", byte, byte == 0 ? '\x01' : '\0');
  }
  const Error error = error_of([&] { Engine::load(model, test_options()); });
  EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
  EXPECT_TRUE(is_one_line_with(error, {kModule + ".weight_global_scale", "inverse is finite"}))
      << error.what();
}

}  // namespace
}  // namespace vitrine::testing
