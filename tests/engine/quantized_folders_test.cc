// SPDX-License-Identifier: Apache-2.0
// Folders that others' packages quantized: logits beside the float model's of the same weights.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "tests/engine/quantized_answers.h"

namespace vitrine::testing {
namespace {

using nlohmann::json;

class QuantizedAnswersTest : public ::testing::TestWithParam<std::string> {};

/// Writes a folder's model with all of its quantized modules in float32.
void write_float_copy(const Checkpoint& source, const nlohmann::json& expected,
                      const TemporaryFolder& folder) {
  json config = json::parse(source.config_json());
  config.erase("quantization_config");
  write_bytes(folder / "config.json", config.dump());
  std::map<std::string, std::pair<std::vector<int64_t>, std::vector<float>>> tensors;
  for (const auto& [module, hash] : expected["modules"].items()) {
    const auto found = find_module(source, module, expected);
    const std::string name = module + ".weight";
    tensors[name] = {found ? std::vector{found->rows, found->cols} : source.require(name).shape,
                     read_module(source, module, expected)};
  }
  for (const TensorInfo& info : source.tensors()) {
    const std::string module = info.name.substr(0, info.name.rfind('.'));
    const bool is_part = expected["modules"].contains(module) && !info.name.ends_with(".bias");
    if (is_part || info.name.ends_with(".k_scale") || info.name.ends_with(".v_scale")) continue;
    tensors[info.name] = {info.shape, source.read_f32(info)};
  }
  SafetensorsWriter writer(folder / "model.safetensors");
  for (const auto& [name, tensor] : tensors) writer.declare(name, DType::kF32, tensor.first);
  writer.begin();
  for (const auto& [name, tensor] : tensors) {
    writer.write(name, std::as_bytes(std::span(tensor.second)));
  }
  writer.finish();
}

/// Rounding alone parts the float copy from transformers. Integers have their activations in int8
/// besides, which costs these models of 32 columns and more some 1e-4.
TEST_P(QuantizedAnswersTest, AnswersAsTheFloatModelOfItsWeights) {
  const json expected = expected_of(GetParam());
  const auto tokens = expected["tokens"].get<std::vector<int32_t>>();
  const std::vector<float> float_logits = decode_floats(expected["logits"]);
  const size_t vocabulary = float_logits.size() / tokens.size();
  const std::string path = quantized_folder(GetParam());
  const TemporaryFolder copy;
  write_float_copy(Checkpoint::open(path), expected, copy);
  const std::vector<float> copied = run_model(copy.path(), tokens);
  ASSERT_EQ(copied.size(), float_logits.size());
  EXPECT_LE(divergence(float_logits, copied, vocabulary), 1e-6);
  const std::vector<float> logits = run_model(path, tokens);
  EXPECT_LE(divergence(float_logits, logits, vocabulary), 5e-4);
  EngineOptions mapped;
  mapped.mmap_weights = true;
  EXPECT_EQ(run_model(path, tokens, mapped), logits);
}

/// The queries, keys and values of these have an order each, and so have their gates and ups, which
/// one kernel takes together. Output projections have one group alone.
TEST(QuantizedAnswers, SortColumnsOfOneMatrixEach) {
  for (const char* name : {"ct_act_order", "gptq_v1_act_order"}) {
    const auto engine = Engine::load(quantized_folder(name), {});
    for (const PlanEntry& entry : engine->plan()) {
      const bool is_ordered = entry.op == "qkv" || entry.op == "dense_ffn" || entry.op == "experts";
      EXPECT_EQ(entry.kernel.find("int4g32+order") != entry.kernel.npos, is_ordered)
          << name << ": " << entry.op << " " << entry.kernel;
    }
    EngineOptions options;
    options.strict = true;
    const Error error = error_of([&] { Engine::load(quantized_folder(name), options); });
    EXPECT_TRUE(is_one_line_with(error, {"gate and up of unlike column orders"})) << error.what();
  }
}

/// Matrices of unlike widths and groups, and a head whose rows are filled up.
TEST(QuantizedAnswers, SortColumnsOfSeveralWidths) {
  EngineOptions options;
  options.strict = true;  // nothing is widened
  const auto engine = Engine::load(quantized_folder("exl2_mixed"), options);
  EXPECT_EQ(engine->summary().vocab_size, 40);
  for (const PlanEntry& entry : engine->plan()) {
    const bool is_ordered = entry.op == "qkv" || entry.op == "dense_ffn" || entry.op == "head";
    EXPECT_EQ(entry.kernel.find("+order") != entry.kernel.npos, is_ordered)
        << entry.op << " " << entry.kernel;
  }
}

/// What no kernel reads as it is runs as floats, and says so: an error where the host is strict.
TEST(QuantizedAnswers, NamesWhatIsWidened) {
  EngineOptions options;
  options.strict = true;
  for (const char* name :
       {"ct_nvfp4", "ct_mxfp8", "ct_act_order", "gptq_v1_act_order", "exl2_moe"}) {
    const Error error = error_of([&] { run_model(quantized_folder(name), {1}, options); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported) << name;
    EXPECT_TRUE(is_one_line_with(error, {name, "no fused kernels", "MB in place of", "expected"}))
        << error.what();
  }
  for (const char* name : {"awq", "gptq_p", "ct_w8a8", "ct_mxfp4", "ct_sparse24"}) {
    EXPECT_FALSE(run_model(quantized_folder(name), {1}, options).empty()) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedAnswersTest, ::testing::ValuesIn(quantized_folders()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace vitrine::testing
