// SPDX-License-Identifier: Apache-2.0
// GGUF files of Gemma 4: layers of two kinds, experts beside a dense block, the E form.
#include <gtest/gtest.h>

#include "folders.h"
#include "gguf_builder.h"
#include "model/gemma4.h"

namespace vitrine {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): builders of bytes

using Changes = std::vector<std::pair<std::string, std::string>>;

std::string gemma_key(const char* name) { return std::string("gemma4.") + name; }
std::string gemma_flags(const std::vector<uint8_t>& flags) {
  return gguf_array(gemma_key("attention.sliding_window_pattern"), 7, flags);
}
template <typename T>
std::string gemma_array(const char* name, uint32_t type, const std::vector<T>& values) {
  return gguf_array(gemma_key(name), type, values);
}

struct GemmaTensor {
  std::string name;
  std::vector<uint64_t> extents;  // fastest first, of float32
};

/// A mixture of two layers, the first of which slides; all but the tensors of most modules.
struct GemmaFile {
  std::vector<std::string> entries = {
      gguf_text("general.architecture", "gemma4"),
      gguf_u32(gemma_key("context_length"), 128),
      gguf_u32(gemma_key("embedding_length"), 64),
      gguf_u32(gemma_key("block_count"), 2),
      gguf_u32(gemma_key("feed_forward_length"), 96),
      gguf_f32(gemma_key("attention.layer_norm_rms_epsilon"), 1e-5F),
      gguf_u32(gemma_key("attention.head_count"), 4),
      gemma_array<int32_t>("attention.head_count_kv", 5, {2, 1}),
      gguf_u32(gemma_key("attention.key_length"), 32),
      gguf_u32(gemma_key("attention.value_length"), 32),
      gguf_u32(gemma_key("attention.key_length_swa"), 16),
      gguf_u32(gemma_key("attention.value_length_swa"), 16),
      gguf_u32(gemma_key("attention.sliding_window"), 24),
      gguf_u32(gemma_key("attention.shared_kv_layers"), 0),
      gguf_u32(gemma_key("embedding_length_per_layer_input"), 0),
      gguf_u32(gemma_key("rope.dimension_count"), 32),
      gguf_u32(gemma_key("rope.dimension_count_swa"), 16),
      gguf_f32(gemma_key("rope.freq_base"), 2e6F),
      gguf_f32(gemma_key("rope.freq_base_swa"), 2e4F),
      gguf_f32(gemma_key("final_logit_softcapping"), 30.0F),
      gguf_u32(gemma_key("expert_count"), 4),
      gguf_u32(gemma_key("expert_used_count"), 2),
      gguf_u32(gemma_key("expert_feed_forward_length"), 24),
      gemma_flags({1, 0})};
  std::vector<GemmaTensor> tensors = {{"token_embd.weight", {64, 8}},
                                      {"blk.0.attn_v.weight", {64, 32}},
                                      {"blk.0.ffn_norm.weight", {64}},
                                      {"blk.0.ffn_gate_up_exps.weight", {64, 48, 4}},
                                      {"blk.0.ffn_down_exps.weight", {24, 64, 4}},
                                      {"blk.0.ffn_down_exps.scale", {4}},
                                      {"blk.0.ffn_gate_inp.scale", {64}},
                                      {"blk.0.layer_output_scale.weight", {1}}};
  std::vector<float> factors = {1, 1, 1, 1, 1e30F, 1e30F, 1e30F, 1e30F};  // and as many more

  GemmaFile() { factors.resize(16, 1e30F); }

  void set(const std::string& key, const std::string& entry) {
    std::erase_if(entries,
                  [&](const std::string& other) { return other.starts_with(gguf_string(key)); });
    if (!entry.empty()) entries.push_back(entry);
  }
  void drop(std::string_view name) {
    std::erase_if(tensors, [&](const GemmaTensor& tensor) { return tensor.name == name; });
  }
  void replace(std::string_view name, const std::vector<uint64_t>& extents) {
    drop(name);
    tensors.push_back({std::string(name), extents});
  }

  std::string bytes() const {
    GgufFile file;
    file.entries = entries;
    const auto add = [&](const std::string& name, const std::vector<uint64_t>& extents) {
      file.data_bytes = (file.data_bytes + 31) / 32 * 32;
      file.tensors.push_back(gguf_tensor(name, extents, 0, file.data_bytes));
      uint64_t size = sizeof(float);
      for (const uint64_t extent : extents) size *= extent;
      file.data_bytes += size;
    };
    for (const GemmaTensor& tensor : tensors) add(tensor.name, tensor.extents);
    if (!factors.empty()) add("rope_freqs.weight", {factors.size()});
    std::string bytes = file.bytes();
    bytes.resize(bytes.size() - factors.size() * sizeof(float));
    for (const float factor : factors) bytes += le(factor);
    return bytes;
  }
};

/// Four layers, the last two of which read the keys and values of the first two.
GemmaFile e_form() {
  GemmaFile file;
  for (const char* name : {"expert_count", "expert_used_count", "expert_feed_forward_length"}) {
    file.set(gemma_key(name), "");
  }
  for (const char* name : {"blk.0.ffn_gate_up_exps.weight", "blk.0.ffn_down_exps.weight",
                           "blk.0.ffn_down_exps.scale", "blk.0.ffn_gate_inp.scale"}) {
    file.drop(name);
  }
  const auto set = [&](const char* name, uint32_t value) {
    file.set(gemma_key(name), gguf_u32(gemma_key(name), value));
  };
  set("block_count", 4);
  set("attention.head_count_kv", 2);
  set("attention.shared_kv_layers", 2);
  set("embedding_length_per_layer_input", 6);
  file.set(gemma_key("feed_forward_length"),
           gemma_array<int32_t>("feed_forward_length", 5, {96, 96, 192, 192}));
  file.set(gemma_key("attention.sliding_window_pattern"), gemma_flags({1, 0, 1, 0}));
  file.tensors.push_back({"per_layer_token_embd.weight", {24, 10}});
  file.tensors.push_back({"blk.1.attn_v.weight", {64, 64}});
  file.tensors.push_back({"blk.3.inp_gate.weight", {64, 6}});
  return file;
}

class GgufGemmaTest : public ::testing::Test {
 protected:
  Checkpoint open(const GemmaFile& file) {
    write_bytes(folder_ / "model.gguf", file.bytes());
    return Checkpoint::open(folder_ / "model.gguf");
  }
  ModelConfig config_of(const GemmaFile& file) { return parse_model_config(open(file)); }
  void expect_error(const GemmaFile& file, std::initializer_list<std::string_view> parts,
                    ErrorKind kind = ErrorKind::kBadFile) {
    const Error error = error_of([&] { config_of(file); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"model.gguf", "expected"})) << error.what();
  }
  /// Expects an error of the mixture with that entry in place of its own.
  void expect_bad_entry(const char* name, const std::string& entry,
                        std::initializer_list<std::string_view> parts,
                        ErrorKind kind = ErrorKind::kBadFile) {
    GemmaFile file;
    file.set(gemma_key(name), entry);
    expect_error(file, parts, kind);
    expect_error(file, {gemma_key(name)}, kind);
  }
  TemporaryFolder folder_;
};

TEST_F(GgufGemmaTest, LayersAreOfTwoKinds) {
  const ModelConfig config = config_of({});
  EXPECT_EQ(config.model_type, "gemma4_text");
  EXPECT_EQ(config.slides, (std::vector<bool>{true, false}));
  EXPECT_EQ(config.windows, (std::vector<int64_t>{24, 0}));
  EXPECT_EQ(config.layer_head_dim(0), 16);
  EXPECT_EQ(config.layer_head_dim(1), 32);
  EXPECT_EQ(config.layer_kv_heads(0), 2);
  EXPECT_EQ(config.layer_kv_heads(1), 1);
  EXPECT_TRUE(config.own_fields<model::Gemma4Fields>().values_from_keys);
  EXPECT_EQ(config.rope_theta, 2e6);
  EXPECT_EQ(config.sliding_rope_theta, 2e4);
  EXPECT_EQ(config.global_rotary_share, 0.25);
  EXPECT_EQ(config.own_fields<model::Gemma4Fields>().final_logit_softcapping, 30.0);
  EXPECT_EQ(config.embedding_multiplier, 8.0);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.num_experts, 4);
  EXPECT_EQ(config.num_experts_per_token, 2);
  EXPECT_EQ(config.moe_intermediate_size, 24);
  EXPECT_EQ(config.own_fields<model::Gemma4Fields>().per_layer_input_size, 0);
  EXPECT_TRUE(config.tie_word_embeddings);
}

TEST_F(GgufGemmaTest, TensorsHaveTheFoldersNames) {
  const Checkpoint checkpoint = open({});
  const auto& fused = checkpoint.require("model.layers.0.experts.0.gate_proj.weight");
  for (const uint64_t expert : {0, 3}) {
    for (const auto& [turn, part] : {std::pair{uint64_t{0}, "gate"}, {1, "up"}}) {
      const std::string name =
          "model.layers.0.experts." + std::to_string(expert) + "." + part + "_proj.weight";
      const TensorInfo& info = checkpoint.require(name);
      EXPECT_EQ(info.shape, (std::vector<int64_t>{24, 64}));
      EXPECT_EQ(info.file_offset - fused.file_offset, (2 * expert + turn) * 24 * 64 * 4);
      EXPECT_EQ(checkpoint.name_in_file(name), "blk.0.ffn_gate_up_exps.weight");
    }
  }
  for (const auto& [name, in_file] :
       {std::pair{"model.layers.0.router.scale", "blk.0.ffn_gate_inp.scale"},
        {"model.layers.0.router.per_expert_scale", "blk.0.ffn_down_exps.scale"},
        {"model.layers.0.layer_scalar", "blk.0.layer_output_scale.weight"},
        {"model.layers.0.pre_feedforward_layernorm.weight", "blk.0.ffn_norm.weight"},
        {"model.layers.0.experts.3.down_proj.weight", "blk.0.ffn_down_exps.weight"},
        {"model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight"}}) {
    EXPECT_EQ(checkpoint.require(name).dtype, DType::kF32);
    EXPECT_EQ(checkpoint.name_in_file(name), in_file);
  }
  EXPECT_EQ(checkpoint.find("rope_freqs.weight"), nullptr);
}

TEST_F(GgufGemmaTest, TheEFormSharesKeysAndValues) {
  const ModelConfig config = config_of(e_form());
  EXPECT_EQ(config.num_kv_shared_layers, 2);
  EXPECT_EQ(config.kv_source(2), 0);
  EXPECT_EQ(config.kv_source(3), 1);
  EXPECT_TRUE(config.own_fields<model::Gemma4Fields>().double_wide_mlp);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.own_fields<model::Gemma4Fields>().per_layer_input_size, 6);
  EXPECT_EQ(config.own_fields<model::Gemma4Fields>().per_layer_vocab_size, 10);
  EXPECT_FALSE(config.own_fields<model::Gemma4Fields>().values_from_keys);
  EXPECT_EQ(config.num_experts, 0);
  const Checkpoint checkpoint = open(e_form());
  for (const auto& [name, in_file] :
       {std::pair{"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
        {"model.layers.3.per_layer_input_gate.weight", "blk.3.inp_gate.weight"}}) {
    EXPECT_EQ(checkpoint.name_in_file(checkpoint.require(name).name), in_file);
  }
  GemmaFile narrow = e_form();
  narrow.set(gemma_key("feed_forward_length"), gguf_u32(gemma_key("feed_forward_length"), 96));
  EXPECT_FALSE(config_of(narrow).own_fields<model::Gemma4Fields>().double_wide_mlp);
}

// Published files have the same number of heads there, and no field of older configs has another.
TEST_F(GgufGemmaTest, ValuesOfTheirOwnWithOtherHeads) {
  GemmaFile file;
  file.tensors.push_back({"blk.1.attn_v.weight", {64, 32}});
  const ModelConfig config = config_of(file);
  EXPECT_FALSE(config.own_fields<model::Gemma4Fields>().values_from_keys);
  EXPECT_EQ(config.layer_kv_heads(0), 2);
  EXPECT_EQ(config.layer_kv_heads(1), 1);
  EXPECT_EQ(config.layer_head_dim(1), 32);
}

TEST_F(GgufGemmaTest, FlagsMayBeNumbersAndHeadsOneNumber) {
  GemmaFile file;
  file.set(gemma_key("attention.sliding_window_pattern"),
           gemma_array<uint32_t>("attention.sliding_window_pattern", 4, {1, 0}));
  file.set(gemma_key("attention.head_count_kv"), gguf_u32(gemma_key("attention.head_count_kv"), 2));
  const ModelConfig config = config_of(file);
  EXPECT_EQ(config.slides, (std::vector<bool>{true, false}));
  EXPECT_EQ(config.layer_kv_heads(1), 2);
}

TEST_F(GgufGemmaTest, ASharesPairsSurviveTheDivision) {
  for (const size_t half : {16U, 49U, 107U}) {
    for (size_t turned = 0; turned <= half; ++turned) {
      GemmaFile file;
      file.set(gemma_key("rope.dimension_count"), "");
      for (const char* name : {"attention.key_length", "attention.value_length"}) {
        file.set(gemma_key(name), gguf_u32(gemma_key(name), static_cast<uint32_t>(2 * half)));
      }
      file.factors.assign(half, 1e30F);
      std::fill_n(file.factors.begin(), turned, 1.0F);
      EXPECT_EQ(static_cast<size_t>(config_of(file).global_rotary_share * 2.0 *
                                    static_cast<double>(half) / 2),
                turned);
    }
  }
}

TEST_F(GgufGemmaTest, RefusesListsThatDoNotFitTheLayers) {
  const char* const pattern = "attention.sliding_window_pattern";
  expect_bad_entry(pattern, "", {"missing", "a flag for each layer"});
  expect_bad_entry(pattern, gemma_flags({1, 0, 0}), {"array of 3", "each of the 2 layers"});
  expect_bad_entry(pattern, gemma_flags({}), {"array of 0"});
  expect_bad_entry(pattern, gguf_u32(gemma_key(pattern), 6), {"is 6"});
  expect_bad_entry(pattern, gemma_array<float>(pattern, 6, {1, 0}), {"float32"});
  expect_bad_entry(pattern, gemma_flags({0, 1}), {"last layer that does not slide"},
                   ErrorKind::kUnsupported);
  const char* const kv_heads = "attention.head_count_kv";
  expect_bad_entry(kv_heads, gemma_array<int32_t>(kv_heads, 5, {2}), {"array of 1"});
  expect_bad_entry(kv_heads, gemma_array<int32_t>(kv_heads, 5, {2, 0}), {"1 to 8192"});
  expect_bad_entry(kv_heads, gemma_array<int32_t>(kv_heads, 5, {-2, 1}), {"1 to 8192"});
  expect_bad_entry(kv_heads, gemma_array<uint64_t>(kv_heads, 10, {UINT64_MAX, 1}), {"1 to 8192"});
  expect_bad_entry(kv_heads, gemma_array<int32_t>(kv_heads, 5, {3, 1}), {"divisors of the 4"});
  expect_bad_entry(kv_heads, gguf_strings(gemma_key(kv_heads), {"2", "1"}), {"integer for each"});
  const char* const sizes = "feed_forward_length";
  expect_bad_entry(sizes, "", {"missing"});
  expect_bad_entry(sizes, gemma_array<int32_t>(sizes, 5, {96, 96, 96}), {"array of 3"});
  expect_bad_entry(sizes, gemma_array<int32_t>(sizes, 5, {96, 192}), {"twice that"},
                   ErrorKind::kUnsupported);
  GemmaFile mixed = e_form();
  mixed.set(gemma_key(sizes), gemma_array<int32_t>(sizes, 5, {96, 96, 192, 96}));
  expect_error(mixed, {sizes, "twice that"}, ErrorKind::kUnsupported);
  GemmaFile uneven = e_form();
  uneven.set(gemma_key(kv_heads), gemma_array<int32_t>(kv_heads, 5, {2, 1, 4, 1}));
  expect_error(uneven, {kv_heads, "all layers that slide"}, ErrorKind::kUnsupported);
}

TEST_F(GgufGemmaTest, RefusesNumbersThatAreNone) {
  const auto with = [&](const char* name, uint32_t value, std::string_view part,
                        ErrorKind kind = ErrorKind::kBadFile) {
    expect_bad_entry(name, gguf_u32(gemma_key(name), value), {part}, kind);
  };
  for (const char* name :
       {"attention.sliding_window", "attention.head_count", "attention.key_length",
        "attention.key_length_swa", "expert_used_count", "expert_feed_forward_length"}) {
    expect_bad_entry(name, "", {"missing"});
  }
  with("attention.sliding_window", 0, "is 0");
  with("attention.value_length", 16, "expected 32", ErrorKind::kUnsupported);
  with("attention.value_length_swa", 32, "expected 16", ErrorKind::kUnsupported);
  with("rope.dimension_count", 8, "whole heads", ErrorKind::kUnsupported);
  with("rope.dimension_count_swa", 8, "whole heads", ErrorKind::kUnsupported);
  with("attention.shared_kv_layers", 2, "0 to 1");
  with("expert_used_count", 5, "1 to 4");
  with("expert_gating_func", 2, "softmax", ErrorKind::kUnsupported);
  with("embedding_length_per_layer_input", 6, "per_layer_token_embd");
  expect_bad_entry("expert_weights_norm", gguf_bool(gemma_key("expert_weights_norm"), false),
                   {"expected true"}, ErrorKind::kUnsupported);
  expect_bad_entry("rope.scaling.type", gguf_text(gemma_key("rope.scaling.type"), "yarn"),
                   {"'yarn'"}, ErrorKind::kUnsupported);
  expect_bad_entry("rope.scaling.factor", gguf_f32(gemma_key("rope.scaling.factor"), 8.0F),
                   {"expected 1"}, ErrorKind::kUnsupported);
  expect_bad_entry("attn_logit_softcapping", gguf_f32(gemma_key("attn_logit_softcapping"), 50.0F),
                   {"expected 0"}, ErrorKind::kUnsupported);
  expect_bad_entry("final_logit_softcapping", gguf_f32(gemma_key("final_logit_softcapping"), -1),
                   {"is -1"});
  GemmaFile odd;
  for (const char* name :
       {"attention.key_length_swa", "attention.value_length_swa", "rope.dimension_count_swa"}) {
    odd.set(gemma_key(name), gguf_u32(gemma_key(name), 15));
  }
  expect_error(odd, {"15", "even"});
  // The last two layers would read keys and values of a kind that no layer before them has.
  GemmaFile alone = e_form();
  alone.set(gemma_key("attention.sliding_window_pattern"), gemma_flags({0, 0, 1, 0}));
  alone.tensors.push_back({"blk.1.attn_k.weight", {64, 64}});
  expect_error(alone, {"layer 2"});
}

TEST_F(GgufGemmaTest, RefusesTensorsOfAnotherModel) {
  const auto refused = ErrorKind::kUnsupported;
  GemmaFile file;
  for (const char* name : {"blk.0.attn_q.bias", "blk.0.attn_sinks.weight", "ffn_norm.weight"}) {
    file = {};
    file.tensors.push_back({name, {64}});
    expect_error(file, {name}, refused);
  }
  file = {};
  file.set(gemma_key("expert_count"), "");
  expect_error(file, {"ffn_gate_up_exps"}, refused);
  file = e_form();
  file.tensors.push_back({"blk.0.ffn_gate_inp.scale", {64}});
  expect_error(file, {"ffn_gate_inp.scale"}, refused);
  file = e_form();
  file.set(gemma_key("embedding_length_per_layer_input"), "");
  expect_error(file, {"embedding_length_per_layer_input", "per_layer_token_embd"});
  file = e_form();
  file.replace("per_layer_token_embd.weight", {240});
  expect_error(file, {"per_layer_token_embd.weight", "[240]"});
  file = e_form();
  file.replace("per_layer_token_embd.weight", {24, 7});
  expect_error(file, {"at least vocab_size (8)"});
  file = e_form();  // of layers 1 and 3 that do not slide, 1 has keys of its own
  file.set(gemma_key("attention.shared_kv_layers"),
           gguf_u32(gemma_key("attention.shared_kv_layers"), 0));
  file.set(gemma_key("feed_forward_length"), gguf_u32(gemma_key("feed_forward_length"), 96));
  expect_error(file, {"blk.1.attn_v.weight", "blk.3.attn_v.weight"}, refused);
}

TEST_F(GgufGemmaTest, RefusesExpertsAndScalesOfTheWrongShape) {
  for (const std::vector<uint64_t>& extents :
       std::vector<std::vector<uint64_t>>{{64, 48, 3}, {64, 48, 5}, {64, 47, 4}, {64, 48}}) {
    GemmaFile file;
    file.replace("blk.0.ffn_gate_up_exps.weight", extents);
    expect_error(file, {"blk.0.ffn_gate_up_exps.weight", "the shape"});
  }
  GemmaFile twice;
  twice.tensors.push_back({"blk.0.ffn_gate_exps.weight", {64, 24, 4}});
  expect_error(twice, {"blk.0.ffn_gate_up_exps.weight", "twice"});
  GemmaFile scales;
  scales.replace("blk.0.ffn_down_exps.scale", {5});
  scales.replace("blk.0.ffn_gate_inp.scale", {8, 8});
  const Checkpoint checkpoint = open(scales);
  for (const auto& [name, length, in_file] :
       {std::tuple{"model.layers.0.router.per_expert_scale", 4, "blk.0.ffn_down_exps.scale"},
        {"model.layers.0.router.scale", 64, "blk.0.ffn_gate_inp.scale"},
        {"model.layers.1.router.scale", 64, "blk.1.ffn_gate_inp.scale"}}) {
    const Error error = error_of([&] { checkpoint.require_vector(name, length); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_TRUE(is_one_line_with(error, {"model.gguf", in_file, "expected"})) << error.what();
  }
}

TEST_F(GgufGemmaTest, RefusesFactorsThatAreNoShare) {
  const auto with = [&](const std::vector<float>& factors, std::string_view part,
                        ErrorKind kind = ErrorKind::kUnsupported) {
    GemmaFile file;
    file.factors = factors;
    expect_error(file, {"rope_freqs.weight", part}, kind);
  };
  with({}, "is missing", ErrorKind::kBadFile);
  with(std::vector<float>(8, 1.0F), "has 8 values", ErrorKind::kBadFile);
  std::vector<float> factors(16, 1e30F);
  factors[3] = 1.0F;
  with(factors, "holds 1.0");
  factors.assign(16, 1.0F);
  factors[0] = 8.0F;
  with(factors, "holds 8.0");
  factors[0] = std::numeric_limits<float>::quiet_NaN();
  with(factors, "holds nan");
}

}  // namespace
}  // namespace vitrine
