// SPDX-License-Identifier: Apache-2.0
// Whole models that are quantized by a calibration: on every architecture, beside rounding, on any
// number of threads; and what is refused.
#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "tests/checkpoint/quantized_folders.h"
#include "tests/compress/model_divergence.h"
#include "tests/engine/mtp_folder.h"

namespace vitrine::testing {
namespace {

QuantizeOptions gptq_options(const std::string& folder, const char* scheme, int texts, int length) {
  return calibrated_options(folder, scheme, "gptq", texts, length, 100);
}

TEST(CalibratedQuantize, ReachesTheMatricesOfEveryArchitecture) {
  for (const std::string& oracle : oracle_names()) {
    SCOPED_TRACE(oracle);
    const std::string source = oracle_folder(oracle);
    const TemporaryFolder folder;
    const QuantizeOptions options = gptq_options(source, "int4", 6, 24);
    const QuantizeReport report = quantize_checkpoint(source, folder / "out", options);
    size_t reached = 0, in_layers = 0;
    for (const QuantizedTensorReport& tensor : report.quantized) {
      const bool is_expert = tensor.name.find(".experts.") != std::string::npos;
      if (!tensor.name.starts_with("model.layers.") || is_expert) continue;
      ++in_layers;
      reached += tensor.calibration_rows > 0 ? 1 : 0;
      if (tensor.calibration_rows > 0) {
        EXPECT_EQ(tensor.calibration_rows, 144) << tensor.name;
        EXPECT_GE(tensor.damping, 0.01) << tensor.name;
      }
    }
    // What drafts lies behind the layers that are calibrated.
    EXPECT_GE(reached, in_layers * 2 / 3) << in_layers;
    const Checkpoint result = Checkpoint::open(folder / "out");
    EXPECT_TRUE(result.is_quantized());
    EXPECT_LT(model_divergence(source, folder / "out"), 1.0);
  }
}

/// A scale for all that comes to a matrix is one that a text has shown.
TEST(CalibratedQuantize, LeavesScalesToEachTokenWhereNoTextCame) {
  for (const MtpModel& model : mtp_models()) {
    SCOPED_TRACE(model.oracle);
    const MtpFolder source(model, /*is_simple=*/false);
    const TemporaryFolder folder;
    quantize_checkpoint(source.path(), folder / "out",
                        calibrated_options(source.path(), "int8-w8a8-static", "rtn", 6, 24, 100));
    const Checkpoint result = Checkpoint::open(folder / "out");
    size_t in_drafts = 0, in_layers = 0;
    for (const TensorInfo& info : result.tensors()) {
      if (info.dtype != DType::kI8) continue;
      const std::string module = info.name.substr(0, info.name.rfind('.'));
      const bool is_draft = module.starts_with(model.layer) || model.joined.starts_with(module);
      ++(is_draft ? in_drafts : in_layers);
      EXPECT_EQ(result.find_quantized_tensors(module)->activations,
                is_draft ? ActivationUse::kDynamic : ActivationUse::kStatic)
          << module;
      EXPECT_EQ(result.find(module + ".input_scale") == nullptr, is_draft) << module;
    }
    EXPECT_GT(in_drafts, 0u);
    EXPECT_GT(in_layers, 0u);
  }
}

/// So does an expert that no token of the text reached have what the others of its layer have.
TEST(CalibratedQuantize, GivesExpertsThatNoTextReachedTheScaleOfTheOthers) {
  const std::string source = oracle_folder("qwen3_moe");
  for (const char* method : {"rtn", "gptq", "smoothquant"}) {
    SCOPED_TRACE(method);
    const TemporaryFolder folder;
    const QuantizeReport report = quantize_checkpoint(
        source, folder / "out", calibrated_options(source, "int8-w8a8-static", method, 1, 2, 100));
    size_t unreached = 0;
    for (const QuantizedTensorReport& tensor : report.quantized) {
      unreached += tensor.name.ends_with("gate_proj") && tensor.calibration_rows == 0 ? 1 : 0;
    }
    EXPECT_GT(unreached, 0u);
    const Checkpoint result = Checkpoint::open(folder / "out");
    std::map<std::string, std::set<float>> scales;  // by layer
    for (const TensorInfo& info : result.tensors()) {
      if (!info.name.ends_with("gate_proj.input_scale")) continue;
      scales[info.name.substr(0, info.name.find(".mlp."))].insert(result.read_f32(info).front());
    }
    EXPECT_FALSE(scales.empty());
    for (const auto& [layer, all] : scales) EXPECT_EQ(all.size(), 1u) << layer;
  }
}

TEST(CalibratedQuantize, LosesLessThanRounding) {
  for (const char* oracle : {"qwen3_moe", "llama"}) {
    SCOPED_TRACE(oracle);
    const std::string source = oracle_folder(oracle);
    const TemporaryFolder folder;
    for (const char* scheme : {"int3", "int4-asymmetric"}) {
      SCOPED_TRACE(scheme);
      const std::string calibrated = folder / (std::string("a") + scheme);
      const std::string rounded = folder / (std::string("b") + scheme);
      QuantizeOptions options = gptq_options(source, scheme, 40, 40);
      quantize_checkpoint(source, calibrated, options);
      options.method = "rtn";
      options.calibration.clear();
      quantize_checkpoint(source, rounded, options);
      EXPECT_LT(model_divergence(source, calibrated), 0.9 * model_divergence(source, rounded));
    }
  }
}

TEST(CalibratedQuantize, HangsOnNoNumberOfThreads) {
  const std::string source = oracle_folder("qwen3_moe");
  const TemporaryFolder folder;
  QuantizeOptions options = gptq_options(source, "int4", 5, 30);
  std::vector<std::string> digests;
  for (const int threads : {1, 3}) {
    options.threads = threads;
    const std::string out = folder / std::to_string(threads);
    quantize_checkpoint(source, out, options);
    digests.push_back(sha256_of_file(out + "/model.safetensors"));
  }
  EXPECT_EQ(digests[0], digests[1]);
}

/// Writes what a model of 8-bit floats means, in bfloat16, as one without quantization.
void write_meaning(const std::string& source, const std::string& folder) {
  std::filesystem::create_directory(folder);
  const Checkpoint checkpoint = Checkpoint::open(source);
  auto config = nlohmann::json::parse(read_text_file(source + "/config.json", 1 << 20));
  config.erase("quantization_config");
  write_file_atomically(folder + "/config.json", config.dump());
  SafetensorsWriter writer(folder + "/model.safetensors");
  for (const bool writes : {false, true}) {
    if (writes) writer.begin({{"format", "pt"}});
    for (const TensorInfo& info : checkpoint.tensors()) {
      if (info.name.ends_with("_scale")) continue;
      const bool is_float8 = info.dtype == DType::kF8E4M3;
      if (!writes) {
        writer.declare(info.name, is_float8 ? DType::kBF16 : info.dtype, info.shape);
        continue;
      }
      std::vector<std::byte> bytes(info.num_bytes);
      checkpoint.read(info, 0, bytes);
      if (is_float8) {
        const std::string module = info.name.substr(0, info.name.size() - 7);
        bytes.clear();
        for (const float value : dequantize_matrix(*checkpoint.read_quantized(module))) {
          const uint16_t half = float_to_bf16(value);
          bytes.push_back(static_cast<std::byte>(half & 0xff));
          bytes.push_back(static_cast<std::byte>(half >> 8));
        }
      }
      writer.write(info.name, bytes);
    }
  }
  writer.finish();
}

TEST(CalibratedQuantize, EightBitFloatsGoByWhatTheyMean) {
  for (const auto& [oracle, scheme, method] :
       {std::tuple("qwen3_moe", "int4", "gptq"), std::tuple("llama", "int8", "awq"),
        std::tuple("qwen2_moe", "mixed:4.5", "gptq"),
        std::tuple("qwen3_moe_sparse2", "int8-w8a8", "smoothquant")}) {
    SCOPED_TRACE(oracle);
    const TemporaryFolder folder;
    QuantizeOptions options;
    options.scheme = "fp8";
    quantize_checkpoint(oracle_folder(oracle), folder / "fp8", options);
    write_meaning(folder / "fp8", folder / "wide");
    options = calibrated_options(folder / "wide", scheme, method, 5, 24, 900);
    options.keep_layers = true;
    const QuantizeReport report = quantize_checkpoint(folder / "fp8", folder / "a", options);
    quantize_checkpoint(folder / "wide", folder / "b", options);
    EXPECT_EQ(sha256_of_file(folder / "a/model.safetensors"),
              sha256_of_file(folder / "b/model.safetensors"));
    EXPECT_TRUE(std::ranges::any_of(report.quantized, [](const QuantizedTensorReport& tensor) {
      return tensor.calibration_rows > 0;
    }));
    EXPECT_FALSE(std::filesystem::exists(folder / ".a.tmp-layers"));
  }
}

// As transformers 5 writes them: experts in one tensor, scales of blocks by two names.
TEST(CalibratedQuantize, TakesBlocksOf8BitFloatsInOneTensor) {
  const std::string source = quantized_folder("fp8_stacked");
  for (const char* method : {"rtn", "gptq"}) {
    SCOPED_TRACE(method);
    const TemporaryFolder folder;
    QuantizeOptions options = gptq_options(source, "int8", 6, 24);
    options.method = method;
    if (options.method == "rtn") options.calibration.clear();
    const QuantizeReport report = quantize_checkpoint(source, folder / "out", options);
    EXPECT_TRUE(std::ranges::any_of(report.quantized, [](const QuantizedTensorReport& tensor) {
      return tensor.name.find(".self_attn.q_proj") != std::string::npos;
    }));
    const Checkpoint result = Checkpoint::open(folder / "out");
    for (const TensorInfo& info : result.tensors()) {
      EXPECT_FALSE(info.name.ends_with("_proj.scale")) << info.name;
    }
    EXPECT_LT(model_divergence(source, folder / "out", 64), 0.01);
  }
}

TEST(CalibratedQuantize, TheManifestSaysWhatWasReached) {
  const std::string source = oracle_folder("qwen3_moe");
  const TemporaryFolder folder;
  // Three tokens reach six experts at most.
  const QuantizeOptions options = gptq_options(source, "int4", 1, 3);
  quantize_checkpoint(source, folder / "out", options);
  const auto manifest = nlohmann::json::parse(
      read_text_file(folder / "out/vitrine_manifest.json", uint64_t{1} << 24));
  EXPECT_EQ(manifest["scheme"]["rounding"], "gptq");
  EXPECT_EQ(manifest["calibration"]["tokens"], 3);
  size_t reached = 0, rounded = 0;
  for (const auto& [name, tensor] : manifest["quantized"].items()) {
    (tensor["calibration"].is_null() ? rounded : reached) += 1;
  }
  EXPECT_GT(reached, 0u);
  EXPECT_GT(rounded, 1u);  // experts without a token, and the head
}

TEST(CalibratedQuantize, ReachesAsManyAsWereAskedFor) {
  const std::string source = oracle_folder("qwen3_moe");
  const TemporaryFolder folder;
  QuantizeOptions options = gptq_options(source, "int4", 1, 3);
  options.least_reached = 0.9;
  const Error error = error_of([&] { quantize_checkpoint(source, folder / "out", options); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_TRUE(is_one_line_with(error, {"reaches", "model.layers.", "expected a share of 0.9"}));
  EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
  options.least_reached = 0.1;
  EXPECT_GT(quantize_checkpoint(source, folder / "out", options).quantized.size(), 0u);
}

TEST(CalibratedQuantize, RefusesWhatDoesNotGoTogether) {
  const std::string source = oracle_folder("qwen3_moe");
  const TemporaryFolder folder;
  const auto refused = [&](const QuantizeOptions& options,
                           std::initializer_list<std::string_view> words) {
    const Error error = error_of([&] { quantize_checkpoint(source, folder / "out", options); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
    EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
  };
  QuantizeOptions options;
  options.method = "magic";
  refused(options, {"magic", "expected one of: awq, gptq, rtn, smoothquant"});
  options.method = "gptq";
  refused(options, {"gptq needs a calibration"});
  options.calibration = {{1, 2, 3}};
  options.scheme = "fp8";
  refused(options, {"fp8", "expected int8"});
  options.scheme = "int4";
  options.method = "rtn";
  refused(options, {"rtn takes no calibration"});
  options.method = "gptq";
  options.calibration = {{1, 2, 3}, {}};
  refused(options, {"no tokens"});
  options.calibration = {{1, 2, 1 << 20}};
  refused(options, {"1048576", "expected"});
  options.calibration = {std::vector<int32_t>(1 << 20, 1)};
  refused(options, {"max_context"});
}

}  // namespace
}  // namespace vitrine::testing
