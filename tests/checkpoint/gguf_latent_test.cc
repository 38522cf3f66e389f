// SPDX-License-Identifier: Apache-2.0
// GGUF files with latent attention: their widths, their families, the two forms of kv_b.
#include <gtest/gtest.h>

#include "checkpoint/model_config.h"
#include "folders.h"
#include "gguf_builder.h"

namespace vitrine {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): builders of bytes

class GgufLatentTest : public ::testing::Test {
 protected:
  /// Metadata as converters write it since the halves stand apart, and an embedding.
  static GgufFile file_with(const std::vector<std::pair<std::string, std::string>>& changes) {
    GgufFile file;
    const auto name = [](const char* key) { return std::string("deepseek2.") + key; };
    file.entries = {gguf_text("general.architecture", "deepseek2"),
                    gguf_u32(name("context_length"), 128),
                    gguf_u32(name("embedding_length"), 64),
                    gguf_u32(name("block_count"), 2),
                    gguf_u32(name("feed_forward_length"), 96),
                    gguf_u32(name("attention.head_count"), 4),
                    gguf_u32(name("attention.head_count_kv"), 1),
                    gguf_f32(name("attention.layer_norm_rms_epsilon"), 1e-5F),
                    gguf_u32(name("attention.key_length"), 48),
                    gguf_u32(name("attention.value_length"), 32),
                    gguf_u32(name("attention.key_length_mla"), 40),
                    gguf_u32(name("attention.value_length_mla"), 20),
                    gguf_u32(name("attention.kv_lora_rank"), 32),
                    gguf_u32(name("attention.q_lora_rank"), 24),
                    gguf_u32(name("rope.dimension_count"), 16),
                    gguf_u32(name("expert_count"), 8),
                    gguf_u32(name("expert_used_count"), 2),
                    gguf_u32(name("expert_shared_count"), 1),
                    gguf_u32(name("expert_feed_forward_length"), 32),
                    gguf_u32(name("expert_group_count"), 4),
                    gguf_u32(name("expert_group_used_count"), 2),
                    gguf_f32(name("expert_weights_scale"), 2.5F),
                    gguf_u32(name("expert_gating_func"), 2)};
    for (const auto& [key, entry] : changes) {
      std::erase_if(file.entries,
                    [&](const std::string& other) { return other.starts_with(gguf_string(key)); });
      if (!entry.empty()) file.entries.push_back(entry);
    }
    file.tensors = {gguf_tensor("token_embd.weight", {64, 4}, 0, 0),
                    gguf_tensor("blk.0.attn_k_b.weight", {24, 32, 4}, 0, 1024),
                    gguf_tensor("blk.0.attn_v_b.weight", {32, 20, 4}, 0, 1024 + 12288),
                    gguf_tensor("blk.1.attn_kv_b.weight", {32, 176}, 0, 1024 + 12288 + 10240)};
    file.data_bytes = 1024 + 12288 + 10240 + 22528;
    return file;
  }
  Checkpoint open(const GgufFile& file) {
    write_bytes(folder_ / "model.gguf", file.bytes());
    return Checkpoint::open(folder_ / "model.gguf");
  }
  ModelConfig config_of(const std::vector<std::pair<std::string, std::string>>& changes) {
    return parse_model_config(open(file_with(changes)));
  }
  void expect_error(const std::string& key, const std::string& entry, std::string_view part,
                    ErrorKind kind = ErrorKind::kBadFile) {
    const Error error = error_of([&] { config_of({{key, entry}}); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"model.gguf", part})) << error.what();
  }
  TemporaryFolder folder_;
};

TEST_F(GgufLatentTest, HalvesHaveAHeadsWidthsBesideThoseOfAKey) {
  const ModelConfig config = config_of({});
  EXPECT_EQ(config.model_type, "deepseek_v3");
  EXPECT_EQ(config.kv_lora_rank, 32);
  EXPECT_EQ(config.q_lora_rank, 24);
  EXPECT_EQ(config.qk_nope_head_dim, 24);
  EXPECT_EQ(config.rotary_width(), 16);
  EXPECT_EQ(config.v_head_dim, 20);
  EXPECT_EQ(config.router_groups, 4);
  EXPECT_EQ(config.routed_scaling_factor, 2.5);
  EXPECT_TRUE(config.mlp_only_layers.empty());
  const Checkpoint checkpoint = open(file_with({}));
  EXPECT_EQ(checkpoint.require("model.layers.0.self_attn.k_b_proj.weight").shape,
            (std::vector<int64_t>{4, 32, 24}));
  EXPECT_EQ(checkpoint.require("model.layers.1.self_attn.kv_b_proj.weight").shape,
            (std::vector<int64_t>{176, 32}));
  EXPECT_EQ(checkpoint.name_in_file("model.layers.0.self_attn.v_b_proj.weight"),
            "blk.0.attn_v_b.weight");
}

TEST_F(GgufLatentTest, OlderFilesHaveAHeadsWidthsAlone) {
  const ModelConfig config = config_of(
      {{"deepseek2.attention.key_length_mla", ""},
       {"deepseek2.attention.value_length_mla", ""},
       {"deepseek2.attention.q_lora_rank", ""},
       {"deepseek2.attention.head_count_kv", ""},
       {"deepseek2.attention.key_length", gguf_u32("deepseek2.attention.key_length", 40)},
       {"deepseek2.attention.value_length", gguf_u32("deepseek2.attention.value_length", 20)}});
  EXPECT_EQ(config.qk_nope_head_dim, 24);
  EXPECT_EQ(config.v_head_dim, 20);
  EXPECT_EQ(config.q_lora_rank, 0);
  EXPECT_EQ(config.stored_key_width(), 48);
}

TEST_F(GgufLatentTest, TheFamilyIsThatOfItsScores) {
  const std::string gating = "deepseek2.expert_gating_func";
  const ModelConfig second = config_of({{gating, gguf_u32(gating, 1)}});
  EXPECT_EQ(second.model_type, "deepseek_v2");
  EXPECT_EQ(second.router_groups, 4);
  EXPECT_EQ(config_of({{gating, ""}}).model_type, "deepseek_v2");
  // The correction of scores tells the two apart in files without the key.
  GgufFile corrected = file_with({{gating, ""}});
  corrected.tensors.push_back(gguf_tensor("blk.1.exp_probs_b.bias", {8}, 0, corrected.data_bytes));
  corrected.data_bytes += 8 * sizeof(float);
  EXPECT_EQ(parse_model_config(open(corrected)).model_type, "deepseek_v3");
  EXPECT_EQ(open(corrected).name_in_file("model.layers.1.mlp.gate.e_score_correction_bias"),
            "blk.1.exp_probs_b.bias");
  const std::string norm = "deepseek2.expert_weights_norm";
  const Error error = error_of([&] {
    config_of({{gating, gguf_u32(gating, 1)}, {norm, gguf_bool(norm, true)}});
  });
  EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
  EXPECT_TRUE(is_one_line_with(error, {"expert_weights_norm", "expected false"})) << error.what();
  EXPECT_EQ(config_of({{norm, gguf_bool(norm, true)}}).norm_topk_prob, true);
}

TEST_F(GgufLatentTest, YarnScalesAttention) {
  const auto name = [](const char* key) { return std::string("deepseek2.rope.scaling.") + key; };
  const ModelConfig config = config_of({{"a", gguf_text(name("type"), "yarn")},
                                        {"b", gguf_f32(name("factor"), 40.0F)},
                                        {"c", gguf_u32(name("original_context_length"), 64)},
                                        {"d", gguf_f32(name("yarn_log_multiplier"), 0.0707F)}});
  EXPECT_EQ(config.rope_scaling.mscale_all_dim, 0.707);
  EXPECT_EQ(config.rope_scaling.attention_factor, 1.0);
  EXPECT_GT(config.rope_scaling.latent_scale(), 1.0);
}

TEST_F(GgufLatentTest, NamesWhatIsWrong) {
  for (const char* key : {"deepseek2.attention.kv_lora_rank", "deepseek2.rope.dimension_count"}) {
    expect_error(key, "", key);
    expect_error(key, gguf_u32(key, 0), key);
  }
  const std::string key = "deepseek2.attention.key_length_mla";
  expect_error(key, gguf_u32(key, 16), "more than the 16 rotated");
  const std::string gating = "deepseek2.expert_gating_func";
  expect_error(gating, gguf_u32(gating, 3), "expert_gating_func", ErrorKind::kUnsupported);
  GgufFile file = file_with({});
  file.tensors.push_back(gguf_tensor("blk.0.attn_k.weight", {8, 8}, 0, file.data_bytes));
  file.data_bytes += 256;
  EXPECT_EQ(error_of([&] { open(file); }).kind(), ErrorKind::kUnsupported);
}

}  // namespace
}  // namespace vitrine
