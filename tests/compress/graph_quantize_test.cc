// SPDX-License-Identifier: Apache-2.0
// What is quantized follows from what a model multiplies: on every architecture, and, of latent
// attention and Gated DeltaNet, beside a model of floats that are what the numbers mean.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <span>

#include "tests/engine/edited_model.h"

namespace vitrine::testing {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";
constexpr const char* kLatentReason = "latent attention multiplies with its halves as floats";
constexpr const char* kStateReason = "it steers a state, in which errors would add up";

bool ends_with_one_of(std::string_view name, std::initializer_list<std::string_view> ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return name.ends_with(end); });
}

/// Says by its name why a matrix of a published model stays as it is; empty: it is quantized.
std::string reason_of_matrix(const TensorInfo& info) {
  const std::string& name = info.name;
  if (name.starts_with("model.embed_tokens")) return "embedding";
  if (ends_with_one_of(name, {".gate.weight", ".router.weight", ".router.layer.weight",
                              ".router.proj.weight"})) {
    return "router";
  }
  if (name.ends_with(".shared_expert_gate.weight")) return "shared expert gate";
  if (name.ends_with(".e_score_correction_bias")) return "router correction";
  if (name.ends_with(".kv_b_proj.weight")) return kLatentReason;
  if (ends_with_one_of(name, {".in_proj_ba.weight", ".in_proj_a.weight", ".in_proj_b.weight"})) {
    return kStateReason;
  }
  if (info.shape[1] % 32 == 0) return "";
  return "the group of 32 does not divide its " + std::to_string(info.shape[1]) + " columns";
}

std::string module_name(const std::string& tensor) {
  return tensor.substr(0, tensor.size() - kWeightSuffix.size());
}

struct QuantizedFolder {
  QuantizedFolder(const std::string& source, const std::string& scheme) {
    QuantizeOptions options;
    options.scheme = scheme;
    const QuantizeReport report = quantize_checkpoint(source, path(), options);
    for (const QuantizedTensorReport& tensor : report.quantized) modules.insert(tensor.name);
    for (const UnquantizedTensorReport& tensor : report.unquantized) {
      reasons[tensor.name] = tensor.reason;
    }
  }
  std::string path() const { return folder / "out"; }

  TemporaryFolder folder;
  std::set<std::string> modules;
  std::map<std::string, std::string> reasons;  // by tensor
};

TEST(GraphQuantize, TakesAllThatAnOracleMultiplies) {
  const std::set<std::string> vector_reasons = {
      "norm",         "bias",        "convolution",      "decay of a state", "attention sinks",
      "router scale", "layer scale", "router correction"};
  for (const std::string& oracle : oracle_names()) {
    SCOPED_TRACE(oracle);
    const QuantizedFolder quantized(oracle_folder(oracle), "int4");
    const Checkpoint source = Checkpoint::open(oracle_folder(oracle));
    const Checkpoint result = Checkpoint::open(quantized.path());
    for (const TensorInfo& info : source.tensors()) {
      SCOPED_TRACE(info.name);
      const auto reason = quantized.reasons.find(info.name);
      if (info.shape.size() != 2) {
        ASSERT_NE(reason, quantized.reasons.end());
        EXPECT_TRUE(vector_reasons.contains(reason->second)) << reason->second;
        continue;
      }
      const std::string expected = reason_of_matrix(info);
      if (!expected.empty()) {
        ASSERT_NE(reason, quantized.reasons.end());
        EXPECT_EQ(reason->second, expected);
      } else {
        EXPECT_TRUE(quantized.modules.contains(module_name(info.name)));
      }
      // The config's list of what stays is that of the linear modules.
      if (expected == "embedding" || expected == "router correction") continue;
      EXPECT_EQ(result.quantized_module(module_name(info.name)).has_value(), expected.empty());
    }
  }
}

// A tensor that no op reads is carried over, and the config leaves its module out.
TEST(GraphQuantize, SaysWhatTheModelDoesNotRead) {
  const EditedModel model("llama", {}, [](EditedModel::Tensors& tensors) {
    tensors["model.visual.patch.proj.weight"] = tensors.at("model.layers.0.mlp.up_proj.weight");
    tensors["model.layers.0.mlp.other_proj.weight"] =
        tensors.at("model.layers.0.mlp.up_proj.weight");
  });
  const QuantizedFolder quantized(model.path(), "int4");
  EXPECT_EQ(quantized.reasons.at("model.visual.patch.proj.weight"),
            "the model does not read it (vision and audio)");
  EXPECT_EQ(quantized.reasons.at("model.layers.0.mlp.other_proj.weight"),
            "the model does not read it");
  const Checkpoint result = Checkpoint::open(quantized.path());
  EXPECT_FALSE(result.quantized_module("model.visual.patch.proj").has_value());
  EXPECT_FALSE(result.quantized_module("model.layers.0.mlp.other_proj").has_value());
  EXPECT_TRUE(result.quantized_module("model.layers.0.mlp.up_proj").has_value());
}

TEST(GraphQuantize, RefusesAModelWithoutAGraph) {
  const EditedModel model("llama", [](nlohmann::json& config) { config["model_type"] = "new"; });
  const TemporaryFolder folder;
  const Error error = error_of([&] { quantize_checkpoint(model.path(), folder / "out", {}); });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(error, {"config.json", "'new'", "expected one of", "llama"}))
      << error.what();
}

/// Gives tensors of BF16 whose names end so another shape, with their own numbers over and over.
void reshape(EditedModel::Tensors& tensors, std::string_view end, std::vector<int64_t> shape) {
  for (auto& [name, tensor] : tensors) {
    if (!name.ends_with(end)) continue;
    size_t count = 1;
    for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
    const size_t had = tensor.bytes.size() / 2;
    std::vector<std::byte> bytes(2 * count);
    for (size_t i = 0; i < count; ++i) {
      const size_t from = (i + 7 * (i / had)) % had;
      std::copy_n(tensor.bytes.data() + 2 * from, 2, bytes.data() + 2 * i);
    }
    tensor.shape = shape;
    tensor.bytes = std::move(bytes);
  }
}

/// An oracle, so changed that groups of 32 divide all of its projections that are asked about.
struct AskedModel {
  std::string oracle;
  std::vector<std::string> projections;  // that must be quantized, behind "model.layers.N."
  EditedModel::Edit edit;
  std::function<void(EditedModel::Tensors&)> edit_tensors;
};

const std::vector<AskedModel>& asked_models() {
  static const std::vector<std::string> latent = {"self_attn.q_a_proj", "self_attn.q_b_proj",
                                                  "self_attn.kv_a_proj_with_mqa",
                                                  "self_attn.o_proj"};
  const auto widen_latent = [](nlohmann::json& config) { config["q_lora_rank"] = 64; };
  const auto widen_latent_tensors = [](EditedModel::Tensors& tensors) {
    reshape(tensors, ".q_a_proj.weight", {64, 64});
    reshape(tensors, ".q_a_layernorm.weight", {64});
    reshape(tensors, ".q_b_proj.weight", {192, 64});
  };
  const auto widen_values = [](nlohmann::json& config) { config["linear_value_head_dim"] = 32; };
  // The layer has two key heads of 16 and six value heads of 32.
  const auto widen_delta_tensors = [](EditedModel::Tensors& tensors) {
    reshape(tensors, ".in_proj_qkvz.weight", {448, 64});
    reshape(tensors, ".in_proj_qkv.weight", {256, 64});
    reshape(tensors, ".in_proj_z.weight", {192, 64});
    reshape(tensors, ".linear_attn.norm.weight", {32});
    reshape(tensors, ".linear_attn.out_proj.weight", {64, 192});
  };
  static const std::vector<AskedModel> all = {
      {"deepseek_v2", latent, widen_latent, widen_latent_tensors},
      {"deepseek_v3", latent, widen_latent, widen_latent_tensors},
      {"glm4_moe_lite", latent, widen_latent, widen_latent_tensors},
      {"qwen3_next",
       {"linear_attn.in_proj_qkvz", "linear_attn.out_proj"},
       widen_values,
       [=](EditedModel::Tensors& tensors) {
         widen_delta_tensors(tensors);
         reshape(tensors, ".conv1d.weight", {256, 1, 3});
       }},
      {"qwen3_5_moe_text",
       {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z", "linear_attn.out_proj"},
       widen_values,
       [=](EditedModel::Tensors& tensors) {
         widen_delta_tensors(tensors);
         reshape(tensors, ".conv1d.weight", {256, 1, 4});
       }},
  };
  return all;
}

float meaning_of_e4m3(uint8_t bits) {
  const int exponent = bits >> 3 & 15, mantissa = bits & 7;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                   : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 128) != 0 ? -size : size;
}

/// The numbers that a quantized module stands for, from its tensors as the formats define them.
std::vector<float> meaning_of(const Checkpoint& checkpoint, const std::string& module) {
  const std::vector<float> scales = checkpoint.read_f32(module + ".weight_scale");
  const TensorInfo* floats = checkpoint.find(module + ".weight");
  const TensorInfo& numbers =
      floats != nullptr ? *floats : checkpoint.require(module + ".weight_packed");
  std::vector<std::byte> bytes(numbers.num_bytes);
  checkpoint.read(numbers, bytes);
  const auto rows = static_cast<size_t>(numbers.shape[0]);
  const size_t row_bytes = bytes.size() / rows, groups = scales.size() / rows;
  const auto bits =
      static_cast<size_t>(floats != nullptr ? 8 : checkpoint.quantized_module(module)->bits);
  const size_t cols = row_bytes * 8 / bits;
  std::vector<float> meaning;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t col = 0; col < cols; ++col) {
      const auto byte = std::to_integer<uint8_t>(bytes[row * row_bytes + col * bits / 8]);
      const int part = bits == 8 ? byte : byte >> (col % 2 * 4) & 15;
      const float number =
          floats != nullptr ? meaning_of_e4m3(byte) : static_cast<float>(part - (1 << (bits - 1)));
      meaning.push_back(number * scales[row * groups + col * groups / cols]);
    }
  }
  return meaning;
}

/// The source in float32, its quantized matrices in what their numbers mean.
void write_meaning(const std::string& source_path, const std::string& quantized_path,
                   const std::string& out) {
  const Checkpoint source = Checkpoint::open(source_path);
  const Checkpoint quantized = Checkpoint::open(quantized_path);
  std::filesystem::create_directory(out);
  write_bytes(out + "/config.json", source.config_json());
  SafetensorsWriter writer(out + "/model.safetensors");
  for (const TensorInfo& info : source.tensors()) {
    writer.declare(info.name, DType::kF32, info.shape);
  }
  writer.begin();
  for (const TensorInfo& info : source.tensors()) {
    const bool is_quantized = info.name.ends_with(kWeightSuffix) &&
                              quantized.find_quantized(module_name(info.name)) != nullptr;
    const std::vector<float> values =
        is_quantized ? meaning_of(quantized, module_name(info.name)) : source.read_f32(info);
    writer.write(info.name, std::as_bytes(std::span(values)));
  }
  writer.finish();
}

Rows rows_of(const std::string& path) {
  EngineOptions options = test_options();
  options.kv_codecs = {"f32"};
  const auto engine = Engine::load(path, options);
  return score(*engine, prompt_ids(61, engine->summary().vocab_size));
}

/// The length of all differences over that of all logits.
double relative_distance(const Rows& expected, const Rows& found) {
  double differences = 0, sizes = 0;
  for (const auto& [position, row] : expected) {
    for (size_t i = 0; i < row.size(); ++i) {
      const double difference = static_cast<double>(found.at(position)[i]) - row[i];
      differences += difference * difference;
      sizes += static_cast<double>(row[i]) * row[i];
    }
  }
  return std::sqrt(differences / sizes);
}

TEST(GraphQuantize, ProjectionsOfLatentsAndStatesRunAsTheyMean) {
  for (const AskedModel& asked : asked_models()) {
    const EditedModel model(asked.oracle, asked.edit, asked.edit_tensors);
    for (const std::string scheme : {"int4", "int8", "fp8"}) {
      SCOPED_TRACE(asked.oracle + " " + scheme);
      const QuantizedFolder quantized(model.path(), scheme);
      for (const std::string& projection : asked.projections) {
        EXPECT_TRUE(quantized.modules.contains("model.layers.2." + projection)) << projection;
      }
      const TemporaryFolder folder;
      write_meaning(model.path(), quantized.path(), folder / "meaning");
      const Rows expected = rows_of(folder / "meaning"), found = rows_of(quantized.path());
      const double distance = relative_distance(expected, found);
      RecordProperty(asked.oracle + "_" + scheme, std::to_string(distance));
      if (scheme == "fp8") {  // inputs stay floats
        EXPECT_LE(distance, 2e-3);
        continue;
      }
      EXPECT_LE(distance, 0.4);  // inputs are int8, which may choose another expert
      EXPECT_GT(distance, 0.0);
      if (scheme == "int8") continue;
      // Four bits a weight move logits more than eight bits an input.
      EXPECT_LT(distance, relative_distance(rows_of(model.path()), found));
    }
  }
}

TEST(GraphQuantize, KeepsTheMatrixThatMakesKeysAndValues) {
  const QuantizedFolder quantized(oracle_folder("deepseek_v3"), "int8");
  const Checkpoint source = Checkpoint::open(oracle_folder("deepseek_v3"));
  const Checkpoint result = Checkpoint::open(quantized.path());
  const std::string name = "model.layers.1.self_attn.kv_b_proj.weight";
  EXPECT_EQ(result.require(name).dtype, source.require(name).dtype);
  EXPECT_EQ(result.read_f32(name), source.read_f32(name));
}

}  // namespace
}  // namespace vitrine::testing
