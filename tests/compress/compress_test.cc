// SPDX-License-Identifier: Apache-2.0
#include "vitrine/compress.h"
#include "checkpoint/model_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "tests/checkpoint/folders.h"
#include "tests/support/test_data.h"

namespace vitrine {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::is_one_line_with;
using testing::read_bytes;
using testing::TemporaryFolder;
using testing::write_bytes;

std::string oracle(const std::string& name) {
  return testing_support::test_data("oracles/" + name);
}

std::set<std::string> names_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

/// The module's stored matrix equals quantize_matrix of the source tensor.
void expect_module(const Checkpoint& result, const Checkpoint& source, const std::string& module,
                   const std::string& tensor, const QuantScheme& scheme) {
  const TensorInfo& info = source.require(tensor);
  const QuantizedMatrix expected =
      quantize_matrix(source.read_f32(info), info.shape[0], info.shape[1], info.dtype, scheme);
  const std::optional<QuantizedMatrix> found = result.read_quantized(module);
  ASSERT_TRUE(found.has_value()) << module;
  EXPECT_EQ(found->values, expected.values) << module;
  EXPECT_EQ(found->scales, expected.scales) << module;
  EXPECT_EQ(found->zero_points, expected.zero_points) << module;
  EXPECT_EQ(found->zero_points.empty(), scheme.symmetric) << module;
  EXPECT_EQ(found->bits, scheme.bits) << module;
  EXPECT_EQ(found->scale_dtype, info.dtype) << module;
}

TEST(Compress, QuantizesEveryOracleSoThatTheReaderFindsIt) {
  for (const char* name : {"qwen3_moe", "qwen3_moe_sparse2", "qwen2_moe", "mixtral", "olmoe",
                           "granitemoe", "llama", "qwen3"}) {
    for (const auto& [scheme, bits, group_size] :
         {std::tuple("int4", 4, 32), std::tuple("int8", 8, 64),
          std::tuple("int4-asymmetric", 4, 32)}) {
      const TemporaryFolder folder;
      QuantizeOptions options;
      options.scheme = scheme;
      options.group_size = group_size;
      const QuantizeReport report = quantize_checkpoint(oracle(name), folder / "out", options);
      const Checkpoint source = Checkpoint::open(oracle(name));
      const Checkpoint result = Checkpoint::open(folder / "out");
      const ModelConfig before = parse_model_config(source);
      const ModelConfig after = parse_model_config(result);
      EXPECT_TRUE(result.is_quantized());
      EXPECT_FALSE(after.tie_word_embeddings);
      EXPECT_EQ(after.num_experts, before.num_experts);
      EXPECT_EQ(report.quantized.size() + report.unquantized.size(),
                source.tensors().size() + (before.tie_word_embeddings ? 1 : 0));
      size_t projections = 0;
      for (const QuantizedTensorReport& tensor : report.quantized) {
        const bool is_head = tensor.name == "lm_head";
        const std::string from = is_head && before.tie_word_embeddings ? "model.embed_tokens.weight"
                                                                       : tensor.name + ".weight";
        expect_module(
            result, source, tensor.name, from,
            {is_head ? 8 : bits, group_size, is_head || find_quant_method(scheme).symmetric});
        EXPECT_GT(tensor.mean_absolute_error, 0.0);
        EXPECT_GE(tensor.worst_absolute_error, tensor.mean_absolute_error);
        projections += !is_head;
      }
      int64_t expected = 0;  // projections whose columns groups of 64 divide, too
      for (int64_t layer = 0; layer < before.num_layers; ++layer) {
        expected += 4 + (before.is_sparse_layer(layer) ? 3 * before.num_experts : 3) +
                    (before.shared_expert_intermediate_size > 0 ? 3 : 0);
        // qwen2_moe's shared expert has 96 columns in its down projection.
        if (before.shared_expert_intermediate_size % group_size != 0) --expected;
      }
      EXPECT_EQ(static_cast<int64_t>(projections), expected) << name << " " << scheme;
      for (const UnquantizedTensorReport& tensor : report.unquantized) {
        EXPECT_EQ(result.read_f32(tensor.name), source.read_f32(tensor.name)) << tensor.name;
        EXPECT_FALSE(tensor.reason.empty());
      }
      EXPECT_LT(report.result_bytes, report.source_bytes);
    }
  }
}

TEST(Compress, WritesAManifest) {
  const TemporaryFolder folder;
  const std::string in = folder / "in";
  std::filesystem::copy(oracle("qwen2_moe"), in);
  write_bytes(in + "/tokenizer.json", "{\"model\": {}}");
  write_bytes(in + "/tokenizer_config.json", "{}");
  QuantizeOptions options;
  options.scheme = "int8";
  options.group_size = 64;
  options.tool_version = "9.9";
  options.instruction_set = "portable";
  int64_t begun = 0;  // tensors; each is told before it and before each block of it
  options.progress = [&](const QuantizeProgress& progress) {
    if (progress.stage != "tensors") return;
    const int64_t done = progress.done, total = progress.total;
    EXPECT_TRUE(done == begun || done == begun - 1) << done << " after " << begun;
    begun = done + 1;
    EXPECT_GT(total, done);
  };
  options.evaluate = [&](const std::string& result) {
    EXPECT_EQ(Checkpoint::open(result).tokenizer_path(), result + "/tokenizer.json");
    return std::optional(QuantizeEvaluation{"text.txt", "00", 7, 2.0, 2.5, 0.125});
  };
  const QuantizeReport report = quantize_checkpoint(in, folder / "out/", options);
  EXPECT_EQ(begun, static_cast<int64_t>(report.quantized.size() + report.unquantized.size()));
  EXPECT_EQ(
      names_in(folder / "out"),
      (std::set<std::string>{"config.json", "generation_config.json", "model.safetensors",
                             "tokenizer.json", "tokenizer_config.json", "vitrine_manifest.json"}));
  const json manifest = json::parse(read_bytes(folder / "out/vitrine_manifest.json"));
  EXPECT_EQ(manifest["tool"]["version"], "9.9");
  EXPECT_EQ(manifest["instruction_set"], "portable");
  EXPECT_EQ(manifest["scheme"]["name"], "int8");
  EXPECT_EQ(manifest["scheme"]["group_size"], 64);
  EXPECT_EQ(manifest["source"]["name"], "in");
  std::set<std::string> hashed;
  for (const json& file : manifest["source"]["files"]) {
    const std::string name = file["name"];
    hashed.insert(name);
    EXPECT_EQ(file["sha256"], sha256_of_file(in + "/" + name));
    EXPECT_EQ(file["bytes"], std::filesystem::file_size(in + "/" + name));
  }
  EXPECT_EQ(hashed,
            (std::set<std::string>{"config.json", "generation_config.json", "model.safetensors",
                                   "tokenizer.json", "tokenizer_config.json"}));
  EXPECT_EQ(manifest["unquantized"]["model.layers.0.mlp.shared_expert.down_proj.weight"],
            "the group of 64 does not divide its 96 columns");
  EXPECT_EQ(manifest["unquantized"]["model.layers.0.mlp.gate.weight"], "router");
  EXPECT_EQ(manifest["unquantized"]["model.layers.0.mlp.shared_expert_gate.weight"],
            "shared expert gate");
  EXPECT_EQ(manifest["unquantized"]["model.embed_tokens.weight"], "embedding");
  EXPECT_EQ(manifest["unquantized"]["model.norm.weight"], "norm");
  EXPECT_GT(manifest["quantized"]["lm_head"]["worst_absolute_error"], 0.0);
  EXPECT_EQ(manifest["evaluation"]["mean_kl"], 0.125);
  EXPECT_EQ(manifest["evaluation"]["text"]["name"], "text.txt");
  const json config = json::parse(read_bytes(folder / "out/config.json"));
  const json& ignore = config["quantization_config"]["ignore"];
  EXPECT_TRUE(std::find(ignore.begin(), ignore.end(), "model.layers.2.mlp.shared_expert_gate") !=
              ignore.end());
  EXPECT_TRUE(std::find(ignore.begin(), ignore.end(),
                        "model.layers.2.mlp.shared_expert.down_proj") != ignore.end());
  EXPECT_EQ(config["quantization_config"]["config_groups"].size(), 1u);
}

TEST(Compress, KeepsATiedHeadTiedOnRequest) {
  const TemporaryFolder folder;
  QuantizeOptions options;
  options.quantize_head = false;
  quantize_checkpoint(oracle("qwen3_moe_sparse2"), folder / "out", options);
  const Checkpoint result = Checkpoint::open(folder / "out");
  EXPECT_TRUE(parse_model_config(result).tie_word_embeddings);
  EXPECT_FALSE(result.quantized_module("lm_head").has_value());
  EXPECT_FALSE(result.read_quantized("lm_head").has_value());
}

TEST(Compress, MakesTheFolderWholeOrNotAtAll) {
  const TemporaryFolder folder;
  QuantizeOptions options;
  const auto run = [&](const std::string& out) {
    return error_of([&] { quantize_checkpoint(oracle("llama"), out, options); });
  };
  options.progress = [](const QuantizeProgress& progress) {
    if (progress.done == 10) throw Error(ErrorKind::kCancelled, "stopped");
  };
  EXPECT_EQ(run(folder / "out").kind(), ErrorKind::kCancelled);
  EXPECT_TRUE(names_in(folder.path()).empty());
  options.progress = nullptr;
  options.evaluate = [](const std::string&) -> std::optional<QuantizeEvaluation> {
    throw Error(ErrorKind::kInvalidArgument, "text is too short");
  };
  EXPECT_STREQ(run(folder / "out").what(), "text is too short");
  EXPECT_TRUE(names_in(folder.path()).empty());
  options.evaluate = nullptr;

  std::filesystem::create_directory(folder / "full");
  write_bytes(folder / "full/notes.txt", "mine");
  write_bytes(folder / "file", "mine");
  for (const char* taken : {"full", "file"}) {
    const Error error = run(folder / taken);
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(is_one_line_with(error, {taken, "isn't an empty folder; expected"}));
  }
  EXPECT_EQ(names_in(folder / "full"), std::set<std::string>{"notes.txt"});
  EXPECT_EQ(run(folder / "no/such/out").kind(), ErrorKind::kIo);
  std::filesystem::create_directory(folder / "empty");
  EXPECT_STREQ(run(folder / "empty").what(), "");
  EXPECT_TRUE(names_in(folder / "empty").contains("model.safetensors"));
  EXPECT_EQ(names_in(folder.path()), (std::set<std::string>{"empty", "file", "full"}));
}

TEST(Compress, RefusesWhatItCannotQuantize) {
  const TemporaryFolder folder;
  QuantizeOptions options;
  options.scheme = "int5";
  const auto run = [&](const std::string& in) {
    return error_of([&] { quantize_checkpoint(in, folder / "out", options); });
  };
  EXPECT_TRUE(is_one_line_with(
      run(oracle("llama")), {"'int5' is unknown", "int3-asymmetric, int4, int4-asymmetric, int8"}));
  options.scheme = "int4";
  options.group_size = 48;
  EXPECT_TRUE(is_one_line_with(run(oracle("llama")), {"group size 48 is unknown"}));
  options.group_size = 128;
  EXPECT_TRUE(is_one_line_with(run(oracle("llama")),
                               {"the group of 128", "matrices", "a group size of 64"}));
  options.group_size = 32;
  EXPECT_STREQ(run(oracle("llama")).what(), "");
  options.group_size = 64;
  std::filesystem::rename(folder / "out", folder / "quantized");
  EXPECT_TRUE(is_one_line_with(run(folder / "quantized"), {"quantized already"}));
}

/// What a matrix of 8-bit floats means, in bfloat16.
std::vector<float> meaning_of(const Checkpoint& checkpoint, const std::string& module) {
  std::vector<float> weights = dequantize_matrix(*checkpoint.read_quantized(module));
  for (float& weight : weights) weight = bf16_to_float(float_to_bf16(weight));
  return weights;
}

// compressed_tensors_test.py compares the values with PyPI's; here: what is copied, and the head.
TEST(Compress, TakesEightBitFloats) {
  const TemporaryFolder folder;
  QuantizeOptions options;
  options.scheme = "fp8";
  quantize_checkpoint(oracle("qwen2_moe"), folder / "fp8", options);
  options = {};
  options.group_size = 64;
  options.quantize_head = false;
  const QuantizeReport report = quantize_checkpoint(folder / "fp8", folder / "int4", options);
  const Checkpoint source = Checkpoint::open(folder / "fp8");
  const Checkpoint result = Checkpoint::open(folder / "int4");
  const ModelConfig config = parse_model_config(result);
  EXPECT_EQ(config.num_experts, parse_model_config(source).num_experts);
  ASSERT_FALSE(report.quantized.empty());
  for (const QuantizedTensorReport& tensor : report.quantized) {
    const QuantizedMatrix matrix = *source.read_quantized(tensor.name);
    const QuantizedMatrix expected = quantize_matrix(meaning_of(source, tensor.name), matrix.rows,
                                                     matrix.cols, DType::kBF16, {4, 64, true});
    const QuantizedMatrix found = *result.read_quantized(tensor.name);
    EXPECT_EQ(found.values, expected.values) << tensor.name;
    EXPECT_EQ(found.scales, expected.scales) << tensor.name;
  }
  // The head, and a shared expert whose columns the group does not divide, become floats.
  size_t widened = 0;
  for (const UnquantizedTensorReport& tensor : report.unquantized) {
    const TensorInfo& before = source.require(tensor.name);
    const TensorInfo& after = result.require(tensor.name);
    if (before.dtype != DType::kF8E4M3) {
      EXPECT_EQ(result.read_f32(after), source.read_f32(before)) << tensor.name;
      continue;
    }
    ++widened;
    EXPECT_EQ(after.dtype, DType::kBF16);
    const std::string module = tensor.name.substr(0, tensor.name.rfind('.'));
    EXPECT_EQ(result.read_f32(after), meaning_of(source, module)) << tensor.name;
  }
  EXPECT_GE(widened, 2U);
  for (const TensorInfo& info : result.tensors()) {
    if (!info.name.ends_with(".weight_scale")) continue;
    const std::string module = info.name.substr(0, info.name.rfind('.'));
    EXPECT_NE(result.find(module + ".weight_packed"), nullptr) << "a scale of nothing: " << module;
  }
  EXPECT_EQ(report.result_bytes, [&] {
    uint64_t bytes = 0;
    for (const TensorInfo& info : result.tensors()) bytes += info.num_bytes;
    return bytes;
  }());
}

TEST(Compress, NamesAScaleThatIsNotFinite) {
  const TemporaryFolder folder;
  QuantizeOptions options;
  options.scheme = "fp8";
  quantize_checkpoint(oracle("llama"), folder / "in", options);
  const std::string name = "model.layers.1.mlp.up_proj.weight_scale";
  const TensorInfo info = Checkpoint::open(folder / "in").require(name);
  std::string bytes = read_bytes(folder / "in/model.safetensors");
  bytes.replace(static_cast<size_t>(info.file_offset) + 2 * 5, 2, "\x80\x7f");
  write_bytes(folder / "in/model.safetensors", bytes);
  const Error error = error_of([&] { quantize_checkpoint(folder / "in", folder / "out", {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
  EXPECT_TRUE(is_one_line_with(error, {"model.safetensors", name, "element 5", "not finite"}));
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"in"});
}

TEST(Compress, NamesATensorThatIsNotFinite) {
  const TemporaryFolder folder;
  std::filesystem::copy(oracle("llama"), folder / "in");
  const std::string name = "model.layers.1.mlp.up_proj.weight";
  const TensorInfo info = Checkpoint::open(folder / "in").require(name);
  std::string bytes = read_bytes(folder / "in/model.safetensors");
  bytes.replace(static_cast<size_t>(info.file_offset) + 2 * (3 * 64 + 5), 2, "\x80\x7f");
  write_bytes(folder / "in/model.safetensors", bytes);
  const Error error = error_of([&] { quantize_checkpoint(folder / "in", folder / "out", {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
  EXPECT_TRUE(
      is_one_line_with(error, {"model.safetensors", name, "row 3, column 5", "not finite"}));
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"in"});
}

}  // namespace
}  // namespace vitrine
