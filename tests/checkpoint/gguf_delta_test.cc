// SPDX-License-Identifier: Apache-2.0
// GGUF files with Gated DeltaNet: which layers keep a state, its sizes, the names of its tensors.
#include <gtest/gtest.h>

#include "checkpoint/model_config.h"
#include "folders.h"
#include "gguf_builder.h"

namespace vitrine {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): builders of bytes

using Changes = std::vector<std::pair<std::string, std::string>>;

class GgufDeltaTest : public ::testing::Test {
 protected:
  /// Metadata of an architecture with four layers as converters write it, and an embedding.
  static GgufFile file_with(const std::string& architecture, const Changes& changes) {
    GgufFile file;
    const auto name = [&](const char* key) { return architecture + "." + key; };
    file.entries = {gguf_text("general.architecture", architecture),
                    gguf_u32(name("context_length"), 128),
                    gguf_u32(name("embedding_length"), 64),
                    gguf_u32(name("block_count"), 4),
                    gguf_u32(name("feed_forward_length"), 96),
                    gguf_u32(name("attention.head_count"), 4),
                    gguf_u32(name("attention.head_count_kv"), 2),
                    gguf_f32(name("attention.layer_norm_rms_epsilon"), 1e-6F),
                    gguf_u32(name("attention.key_length"), 32),
                    gguf_u32(name("attention.value_length"), 32),
                    gguf_u32(name("rope.dimension_count"), 16),
                    gguf_u32(name("ssm.conv_kernel"), 3),
                    gguf_u32(name("ssm.state_size"), 16),
                    gguf_u32(name("ssm.group_count"), 2),
                    gguf_u32(name("ssm.time_step_rank"), 6),
                    gguf_u32(name("ssm.inner_size"), 144)};
    if (architecture != "qwen35") {
      for (const char* key : {"expert_count", "expert_used_count", "expert_feed_forward_length",
                              "expert_shared_feed_forward_length"}) {
        file.entries.push_back(gguf_u32(name(key), 8));
      }
    }
    for (const auto& [key, entry] : changes) {
      std::erase_if(file.entries,
                    [&](const std::string& other) { return other.starts_with(gguf_string(key)); });
      if (!entry.empty()) file.entries.push_back(entry);
    }
    add(file, "token_embd.weight", {64, 4});
    return file;
  }
  /// Appends a tensor of float32.
  static void add(GgufFile& file, std::string_view name, const std::vector<uint64_t>& extents) {
    file.tensors.push_back(gguf_tensor(name, extents, 0, file.data_bytes));
    uint64_t bytes = 4;
    for (const uint64_t extent : extents) bytes *= extent;
    file.data_bytes += (bytes + 31) / 32 * 32;
  }
  Checkpoint open(const GgufFile& file) {
    write_bytes(folder_ / "model.gguf", file.bytes());
    return Checkpoint::open(folder_ / "model.gguf");
  }
  ModelConfig config_of(const std::string& architecture, const Changes& changes = {}) {
    return parse_model_config(open(file_with(architecture, changes)));
  }
  void expect_error(const GgufFile& file, std::initializer_list<std::string_view> parts,
                    ErrorKind kind = ErrorKind::kBadFile) {
    const Error error = error_of([&] { parse_model_config(open(file)); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"model.gguf", "expected"})) << error.what();
  }
  TemporaryFolder folder_;
};

TEST_F(GgufDeltaTest, MetadataSaysWhichLayersKeepAState) {
  for (const std::string architecture : {"qwen3next", "qwen35", "qwen35moe"}) {
    SCOPED_TRACE(architecture);
    const ModelConfig config = config_of(architecture);
    EXPECT_EQ(config.linear_layers, (std::vector<bool>{true, true, true, false}));
    EXPECT_EQ(config.linear_key_heads, 2);
    EXPECT_EQ(config.linear_value_heads, 6);
    EXPECT_EQ(config.linear_key_dim, 16);
    EXPECT_EQ(config.linear_value_dim, 24);
    EXPECT_EQ(config.linear_taps, 3);
    EXPECT_EQ(config.rotary_width(), 16);
    EXPECT_EQ(config.linear_layout, LinearLayout::kConverted);
    EXPECT_EQ(config.num_experts, architecture == "qwen35" ? 0 : 8);
    const std::string interval = architecture + ".full_attention_interval";
    EXPECT_EQ(config_of(architecture, {{interval, gguf_u32(interval, 2)}}).linear_layers,
              (std::vector<bool>{true, false, true, false}));
    const std::string kinds = architecture + ".attention.recurrent_layers";
    const std::string drafts = architecture + ".nextn_predict_layers";
    EXPECT_EQ(config_of(architecture, {{kinds, gguf_array<uint8_t>(kinds, 7, {0, 1, 0, 0})},
                                       {drafts, gguf_u32(drafts, 1)}})
                  .linear_layers,
              (std::vector<bool>{false, true, false}));
  }
  EXPECT_EQ(config_of("qwen3next").model_type, "qwen3_next");
  EXPECT_EQ(config_of("qwen35").model_type, "qwen3_5_text");
  EXPECT_EQ(config_of("qwen35moe").model_type, "qwen3_5_moe_text");
  EXPECT_EQ(config_of("qwen3next").norm_topk_prob, true) << "files have no key for it";
}

TEST_F(GgufDeltaTest, TensorsHaveTheNamesOfAFolder) {
  GgufFile file = file_with("qwen35", {});
  add(file, "blk.0.attn_qkv.weight", {64, 208});
  add(file, "blk.0.attn_gate.weight", {64, 144});
  add(file, "blk.0.ssm_conv1d.weight", {3, 208});
  add(file, "blk.0.ssm_alpha.weight", {64, 6});
  add(file, "blk.0.ssm_a", {6});
  add(file, "blk.0.ssm_dt.bias", {6});
  add(file, "blk.0.post_attention_norm.weight", {64});
  const Checkpoint checkpoint = open(file);
  const auto shape_of = [&](const char* name) {
    return checkpoint.require("model.layers.0." + std::string(name)).shape;
  };
  EXPECT_EQ(shape_of("linear_attn.in_proj_qkv.weight"), (std::vector<int64_t>{208, 64}));
  EXPECT_EQ(shape_of("linear_attn.in_proj_z.weight"), (std::vector<int64_t>{144, 64}));
  EXPECT_EQ(shape_of("linear_attn.conv1d.weight"), (std::vector<int64_t>{208, 1, 3}));
  EXPECT_EQ(shape_of("linear_attn.in_proj_a.weight"), (std::vector<int64_t>{6, 64}));
  EXPECT_EQ(shape_of("linear_attn.A"), (std::vector<int64_t>{6}));
  EXPECT_EQ(shape_of("linear_attn.dt_bias"), (std::vector<int64_t>{6}));
  EXPECT_EQ(shape_of("post_attention_layernorm.weight"), (std::vector<int64_t>{64}));
  for (const auto& [folder, own] :
       {std::pair{"linear_attn.A", "ssm_a"},
        {"linear_attn.dt_bias", "ssm_dt.bias"},
        {"linear_attn.in_proj_b.weight", "ssm_beta.weight"},
        {"linear_attn.norm.weight", "ssm_norm.weight"},
        {"self_attn.q_proj.weight", "attn_q.weight"},
        {"post_attention_layernorm.weight", "post_attention_norm.weight"}}) {
    EXPECT_EQ(checkpoint.name_in_file("model.layers.3." + std::string(folder)),
              "blk.3." + std::string(own));
  }
}

TEST_F(GgufDeltaTest, OlderFilesHaveOneMatrix) {
  GgufFile file = file_with("qwen3next", {});
  add(file, "blk.0.ssm_in.weight", {64, 352});
  EXPECT_EQ(parse_model_config(open(file)).linear_layout, LinearLayout::kConvertedWhole);
  add(file, "blk.1.attn_qkv.weight", {64, 208});
  expect_error(file, {"'ssm_in'", "'attn_qkv'"}, ErrorKind::kUnsupported);
}

TEST_F(GgufDeltaTest, RefusesWhatCannotBe) {
  for (const char* part :
       {"conv_kernel", "state_size", "group_count", "time_step_rank", "inner_size"}) {
    const std::string key = "qwen35moe.ssm." + std::string(part);
    expect_error(file_with("qwen35moe", {{key, ""}}), {key, "is missing"});
    for (const uint32_t size : {0U, 1U << 24}) {
      expect_error(file_with("qwen35moe", {{key, gguf_u32(key, size)}}),
                   {key, std::to_string(size)});
    }
  }
  const auto refuses = [&](const std::string& name, uint32_t value,
                           std::initializer_list<std::string_view> parts,
                           ErrorKind kind = ErrorKind::kBadFile) {
    const std::string key = "qwen35." + name;
    expect_error(file_with("qwen35", {{key, gguf_u32(key, value)}}), parts, kind);
  };
  refuses("ssm.time_step_rank", 7, {"ssm.time_step_rank' is 7", "multiple of the 2 key heads"});
  refuses("ssm.inner_size", 145, {"ssm.inner_size' is 145", "6 value heads"});
  refuses("ssm.inner_size", 6 * 1025, {"ssm.inner_size' is 6150", "at most 1024"});
  refuses("ssm.conv_kernel", 17, {"ssm.conv_kernel' is 17", "1 to 16"});
  refuses("rope.dimension_count", 33, {"rope.dimension_count' is 33", "at most 32"});
  refuses("rope.dimension_count", 3, {"rotary_dim", "even"});
  refuses("full_attention_interval", 0, {"full_attention_interval' is 0"});
  // No layer would keep keys and values.
  refuses("full_attention_interval", 5, {"full_attention_interval' is 5", "keys and values"},
          ErrorKind::kUnsupported);
  const std::string kinds = "qwen35.attention.recurrent_layers";
  const auto with_kinds = [&](const std::string& entry) {
    return file_with("qwen35", {{kinds, entry}});
  };
  expect_error(with_kinds(gguf_array<uint8_t>(kinds, 7, {1, 1, 1, 1})), {kinds, "keys and values"},
               ErrorKind::kUnsupported);
  expect_error(with_kinds(gguf_array<uint8_t>(kinds, 7, {1, 0, 1})), {kinds, "4 layers"});
  expect_error(with_kinds(gguf_array<uint32_t>(kinds, 4, {1, 0, 1, 0})), {kinds, "boolean"});
  expect_error(with_kinds(gguf_u32(kinds, 1)), {kinds, "boolean"});
}

TEST_F(GgufDeltaTest, RefusesTensorsOfOtherFamilies) {
  const auto refuses = [&](const char* architecture, const char* tensor) {
    GgufFile file = file_with(architecture, {});
    add(file, tensor, {64, 64});
    expect_error(file, {tensor, architecture}, ErrorKind::kUnsupported);
  };
  refuses("qwen3next", "blk.0.ssm_alpha.weight");
  refuses("qwen35moe", "blk.0.ssm_ba.weight");
  refuses("qwen35moe", "blk.0.ssm_in.weight");
  refuses("qwen35", "blk.0.ffn_gate_inp_shexp.weight");
  refuses("qwen35", "blk.0.ssm_a.weight");
  refuses("qwen35", "blk.0.ssm_d");
}

}  // namespace
}  // namespace vitrine
