// SPDX-License-Identifier: Apache-2.0
// AWQ, SmoothQuant, scales of inputs and mixed widths: on every architecture, what they fold, and
// what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "tests/compress/model_divergence.h"

namespace vitrine::testing {
namespace {

QuantizeOptions method_options(const std::string& folder, const char* scheme, const char* method,
                               int texts = 4, int length = 24) {
  return calibrated_options(folder, scheme, method, texts, length, 300);
}

std::vector<float> floats(const Checkpoint& checkpoint, const std::string& tensor) {
  return checkpoint.read_f32(checkpoint.require(tensor));
}

/// Copies a model whose tensors `change` may write to.
template <typename Change>
std::string changed_copy(const std::string& source, const std::string& folder,
                         const Change& change) {
  std::filesystem::create_directory(folder);
  for (const auto& entry : std::filesystem::directory_iterator(source)) {
    if (entry.path().extension() == ".safetensors") continue;
    std::filesystem::copy(entry.path(), folder / entry.path().filename());
  }
  const Checkpoint checkpoint = Checkpoint::open(source);
  SafetensorsWriter writer(folder + "/model.safetensors");
  for (const TensorInfo& info : checkpoint.tensors())
    writer.declare(info.name, DType::kF32, info.shape);
  writer.begin({{"format", "pt"}});
  for (const TensorInfo& info : checkpoint.tensors()) {
    std::vector<float> values = checkpoint.read_f32(info);
    change(info, values);
    writer.write(info.name, std::as_bytes(std::span(values)));
  }
  writer.finish();
  return folder;
}

/// Copies a model whose norms' channels c, c + 11, c + 22, … are 30 times as large, and all that
/// reads them as small: it computes the same.
std::string plant_outliers(const std::string& source, const std::string& folder) {
  return changed_copy(source, folder, [](const TensorInfo& info, std::vector<float>& values) {
    const bool is_norm = info.name.ends_with("layernorm.weight");
    const auto has = [&](const char* part) { return info.name.find(part) != std::string::npos; };
    const bool reads = has("q_proj.w") || has("k_proj.w") || has("v_proj.w") ||
                       has("gate_proj.w") || has("up_proj.w") || has("mlp.gate.w");
    const auto width = static_cast<size_t>(info.shape.back());
    for (size_t i = 0; i < values.size(); ++i) {
      if (i % width % 11 != 3) continue;
      if (is_norm) values[i] *= 30;
      if (reads) values[i] /= 30;
    }
  });
}

/// Copies a model whose heads' values have one channel 100 times as large, and the columns that
/// read it as small: it computes the same.
std::string plant_in_values(const std::string& source, const std::string& folder) {
  const auto config = nlohmann::json::parse(
      read_text_file(std::filesystem::path(source) / "config.json", uint64_t{1} << 20));
  const auto head = config.contains("head_dim") ? config["head_dim"].get<size_t>()
                                                : config["hidden_size"].get<size_t>() /
                                                      config["num_attention_heads"].get<size_t>();
  return changed_copy(source, folder, [&](const TensorInfo& info, std::vector<float>& values) {
    const bool is_made = info.name.find("v_proj.") != std::string::npos;
    const bool is_read = info.name.ends_with("o_proj.weight");
    const auto width = info.shape.size() == 1 ? 1 : static_cast<size_t>(info.shape.back());
    for (size_t i = 0; i < values.size(); ++i) {
      if (is_made && i / width % head == 3) values[i] *= 100;
      if (is_read && i % width % head == 3) values[i] /= 100;
    }
  });
}

TEST(LayerMethods, RunOnEveryArchitecture) {
  struct Way {
    const char* scheme;
    const char* method;
    const char* rounded;  // the scheme without a method; empty: none
  };
  for (const std::string& oracle : oracle_names()) {
    SCOPED_TRACE(oracle);
    const std::string source = oracle_folder(oracle);
    // Where a reader of a norm were forgotten, eight bits would lose far more than rounded ones.
    for (const Way way : {Way{"int8", "awq", "int8"}, Way{"int8-w8a8", "smoothquant", "int8-w8a8"},
                          Way{"fp8-static", "rtn", "fp8"}, Way{"mixed:4.6:experts", "rtn", ""}}) {
      SCOPED_TRACE(way.scheme);
      const TemporaryFolder folder;
      const QuantizeOptions options = method_options(source, way.scheme, way.method, 2, 16);
      const QuantizeReport report = quantize_checkpoint(source, folder / "out", options);
      EXPECT_GT(report.quantized.size(), 0u);
      EXPECT_TRUE(Checkpoint::open(folder / "out").is_quantized());
      double most = 1.0;
      if (*way.rounded != '\0') {
        QuantizeOptions rounded;
        rounded.scheme = way.rounded;
        quantize_checkpoint(source, folder / "rounded", rounded);
        most = 2 * model_divergence(source, folder / "rounded") + 0.002;
      }
      EXPECT_LT(model_divergence(source, folder / "out"), most);
    }
  }
}

TEST(LayerMethods, AwqEvensOutValues) {
  for (const char* oracle : {"qwen3_moe", "qwen2_moe", "llama"}) {
    SCOPED_TRACE(oracle);
    const TemporaryFolder folder;
    const std::string source = oracle_folder(oracle);
    const std::string planted = plant_in_values(source, folder / "in");
    ASSERT_LT(model_divergence(source, planted), 1e-6);
    const QuantizeOptions options = method_options(source, "int4", "awq", 8, 40);
    quantize_checkpoint(source, folder / "plain", options);
    quantize_checkpoint(planted, folder / "awq", options);
    EXPECT_LT(model_divergence(source, folder / "awq"),
              1.6 * model_divergence(source, folder / "plain"));
  }
}

TEST(LayerMethods, AwqLosesLessThanRounding) {
  for (const char* oracle : {"qwen3_moe", "llama"}) {
    SCOPED_TRACE(oracle);
    const TemporaryFolder folder;
    const std::string source = plant_outliers(oracle_folder(oracle), folder / "in");
    QuantizeOptions options = method_options(source, "int3", "awq", 20, 40);
    quantize_checkpoint(source, folder / "awq", options);
    options.method = "rtn";
    options.calibration.clear();
    quantize_checkpoint(source, folder / "rtn", options);
    EXPECT_LT(model_divergence(source, folder / "awq"),
              0.9 * model_divergence(source, folder / "rtn"));
  }
}

TEST(LayerMethods, EveryReaderOfANormIsFolded) {
  const TemporaryFolder folder;
  const std::string source = plant_outliers(oracle_folder("qwen3_moe"), folder / "in");
  quantize_checkpoint(source, folder / "out", method_options(source, "int8", "awq", 8, 30));
  const Checkpoint before = Checkpoint::open(source), after = Checkpoint::open(folder / "out");
  size_t moved = 0;
  for (const char* layer : {"model.layers.0.", "model.layers.1."}) {
    const std::string norm = std::string(layer) + "post_attention_layernorm.weight";
    const std::string router = std::string(layer) + "mlp.gate.weight";
    const std::vector<float> norms[] = {floats(before, norm), floats(after, norm)};
    const std::vector<float> routers[] = {floats(before, router), floats(after, router)};
    const size_t width = norms[0].size();
    for (size_t i = 0; i < routers[0].size(); ++i) {
      const float product = norms[0][i % width] * routers[0][i];
      EXPECT_NEAR(norms[1][i % width] * routers[1][i], product, 1e-5 * std::fabs(product));
      moved += norms[1][i % width] != norms[0][i % width] ? 1 : 0;
    }
  }
  EXPECT_GT(moved, 0u);
}

TEST(LayerMethods, SmoothQuantMakesOutliersSmall) {
  const TemporaryFolder folder;
  const std::string source = plant_outliers(oracle_folder("qwen3_moe"), folder / "in");
  const QuantizeOptions plain = method_options(source, "int8-w8a8-static", "rtn", 8, 30);
  quantize_checkpoint(source, folder / "plain", plain);
  QuantizeOptions smooth = plain;
  smooth.method = "smoothquant";
  quantize_checkpoint(source, folder / "smooth", smooth);
  const Checkpoint before = Checkpoint::open(folder / "plain");
  const Checkpoint after = Checkpoint::open(folder / "smooth");
  const std::string scale = "model.layers.0.self_attn.q_proj.input_scale";
  EXPECT_LT(floats(after, scale)[0], 0.4f * floats(before, scale)[0]);
  EXPECT_LT(model_divergence(source, folder / "smooth"), 0.01);
  // All that one norm's rows come to is told the same.
  EXPECT_EQ(floats(after, scale), floats(after, "model.layers.0.self_attn.v_proj.input_scale"));
}

TEST(LayerMethods, HangOnNoNumberOfThreads) {
  const std::string source = oracle_folder("qwen3_moe");
  for (const auto& [scheme, method] :
       {std::pair("int4", "awq"), std::pair("fp8-static", "smoothquant"),
        std::pair("mixed:4.5", "gptq")}) {
    SCOPED_TRACE(scheme);
    const TemporaryFolder folder;
    QuantizeOptions options = method_options(source, scheme, method);
    std::vector<std::string> digests;
    for (const int threads : {1, 3}) {
      options.threads = threads;
      const std::string out = folder / std::to_string(threads);
      quantize_checkpoint(source, out, options);
      digests.push_back(sha256_of_file(out + "/model.safetensors"));
    }
    EXPECT_EQ(digests[0], digests[1]);
  }
}

TEST(LayerMethods, MixturesStayWithinTheirBits) {
  const std::string source = oracle_folder("qwen3_moe");
  const Checkpoint checkpoint = Checkpoint::open(source);
  for (const auto& [by_use, ending] :
       {std::pair(false, ""), {true, ""}, {false, ":experts"}, {true, ":experts"}}) {
    for (const double bits : {3.6, 4.4, 6.0}) {
      SCOPED_TRACE(std::to_string(bits) + ending);
      const TemporaryFolder folder;
      QuantizeOptions options =
          method_options(source, ("mixed:" + std::to_string(bits) + ending).c_str(), "rtn");
      options.mixed_by_use = by_use;
      const QuantizeReport report = quantize_checkpoint(source, folder / "out", options);
      std::map<int, double> weights;
      for (const QuantizedTensorReport& tensor : report.quantized) {
        if (!tensor.name.starts_with("model.layers.")) continue;
        const std::vector<int64_t>& shape = checkpoint.require(tensor.name + ".weight").shape;
        weights[tensor.bits] += static_cast<double>(shape[0] * shape[1]);
      }
      double sum = 0, count = 0;
      for (const auto& [width, size] : weights) {
        sum += size * (width + 0.5);  // groups of 32
        count += size;
      }
      if (!by_use) {
        EXPECT_LE(sum / count, bits);
      }
      EXPECT_GT(weights.size(), 1u);
      EXPECT_LT(model_divergence(source, folder / "out"), 1.0);  // each width is read back
    }
  }
}

TEST(LayerMethods, MixturesGiveBitsToExpertsThatNeedThem) {
  const TemporaryFolder folder;
  const auto number_of = [](const std::string& name) {
    const size_t at = name.find(".experts.");
    return at == std::string::npos ? -1 : std::stoi(name.substr(at + 9));
  };
  // Experts of even numbers add nothing, and nothing is lost where they have few bits.
  const std::string source = changed_copy(oracle_folder("qwen3_moe"), folder / "in",
                                          [&](const TensorInfo& info, std::vector<float>& values) {
                                            const bool is_down =
                                                info.name.find("down_proj") != std::string::npos;
                                            if (is_down && number_of(info.name) % 2 == 0)
                                              std::ranges::fill(values, 0.0f);
                                          });
  for (const bool by_use : {false, true}) {
    SCOPED_TRACE(by_use);
    QuantizeOptions options = method_options(source, "mixed:4.1:experts", "rtn");
    options.mixed_by_use = by_use;
    const std::string out = folder / (by_use ? "by_use" : "by_bits");
    const QuantizeReport report = quantize_checkpoint(source, out, options);
    int64_t wide = 0;
    for (const QuantizedTensorReport& tensor : report.quantized) {
      const int number = number_of(tensor.name);
      if (number >= 0 && number % 2 == 0) {
        EXPECT_EQ(tensor.bits, 3) << tensor.name;
      }
      if (number % 2 == 1 && tensor.bits > 3) ++wide;
    }
    EXPECT_GT(wide, 0);
    const auto manifest =
        nlohmann::json::parse(read_text_file(out + "/vitrine_manifest.json", uint64_t{1} << 24));
    EXPECT_EQ(manifest["scheme"]["bits"], 4.1);
    EXPECT_EQ(manifest["widths"]["by"], "expert");
    EXPECT_LT(manifest["widths"]["mean_kl_by_expert"].get<double>(),
              manifest["widths"]["mean_kl_by_layer"].get<double>());
    options.scheme = "mixed:4.1";
    quantize_checkpoint(source, out + "_alike", options);
    EXPECT_LT(model_divergence(source, out), model_divergence(source, out + "_alike"));
  }
}

TEST(LayerMethods, RefuseWhatTheyCannotMake) {
  const std::string source = oracle_folder("qwen3_moe");
  const TemporaryFolder folder;
  const auto refused = [&](const char* scheme, const char* method, bool has_texts,
                           std::initializer_list<std::string_view> words) {
    QuantizeOptions options = method_options(source, scheme, method);
    if (!has_texts) options.calibration.clear();
    const Error error = error_of([&] { quantize_checkpoint(source, folder / "out", options); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
    EXPECT_TRUE(std::filesystem::is_empty(folder / ""));
  };
  refused("fp8", "awq", true, {"awq makes no fp8", "expected int8, int4 or int3"});
  refused("int8-w8a8", "awq", true, {"awq makes no int8-w8a8"});
  refused("int4", "smoothquant", true, {"smoothquant makes no int4", "int8-w8a8"});
  refused("int8-w8a8-static", "rtn", false, {"needs a calibration", "int8-w8a8-static"});
  refused("nvfp4", "gptq", true, {"gptq makes no nvfp4"});
  refused("int8-w8a8", "rtn", true, {"takes no calibration"});
  refused("mixed:4", "rtn", false, {"needs a calibration", "mixed:4"});
  refused("mixed:2", "gptq", true, {"mixed:2", "expected mixed:3.125"});
  refused("mixed:4bits", "gptq", true, {"mixed:4bits", "no number of bits"});
  refused("mixed:4:expert", "gptq", true, {"mixed:4:expert", "or mixed:BITS:experts"});
  refused("mixed:experts", "gptq", true, {"mixed:experts", "no number of bits"});
  refused("mixed:3.2", "gptq", true, {"fewer bits than int3 in groups of 32", "larger groups"});
}

}  // namespace
}  // namespace vitrine::testing
