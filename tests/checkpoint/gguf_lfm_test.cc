// SPDX-License-Identifier: Apache-2.0
// GGUF files with short convolutions: which layers they are, and their names.
#include <gtest/gtest.h>

#include "checkpoint/model_config.h"
#include "folders.h"
#include "gguf_builder.h"

namespace vitrine {
namespace {

using namespace testing;  // NOLINT(google-build-using-namespace): builders of bytes

class GgufLfmTest : public ::testing::Test {
 protected:
  /// Metadata as converters write it; an embedding, a dense layer's gate and what convolutions
  /// have.
  static GgufFile file_with(const std::vector<std::pair<std::string, std::string>>& changes,
                            const std::string& tensor = {}) {
    GgufFile file;
    const auto name = [](const char* key) { return std::string("lfm2moe.") + key; };
    file.entries = {gguf_text("general.architecture", "lfm2moe"),
                    gguf_u32(name("context_length"), 128),
                    gguf_u32(name("embedding_length"), 64),
                    gguf_u32(name("block_count"), 3),
                    gguf_u32(name("feed_forward_length"), 96),
                    gguf_u32(name("attention.head_count"), 4),
                    gguf_array<int32_t>(name("attention.head_count_kv"), 5, {0, 2, 0}),
                    gguf_f32(name("attention.layer_norm_rms_epsilon"), 1e-5F),
                    gguf_f32(name("rope.freq_base"), 1e6F),
                    gguf_u32(name("expert_count"), 8),
                    gguf_u32(name("expert_used_count"), 2),
                    gguf_u32(name("expert_feed_forward_length"), 32),
                    gguf_u32(name("leading_dense_block_count"), 1),
                    gguf_u32(name("expert_gating_func"), 2),
                    gguf_u32(name("shortconv.l_cache"), 3)};
    for (const auto& [key, entry] : changes) {
      std::erase_if(file.entries,
                    [&](const std::string& other) { return other.starts_with(gguf_string(key)); });
      if (!entry.empty()) file.entries.push_back(entry);
    }
    file.tensors = {gguf_tensor("token_embd.weight", {64, 4}, 0, 0),
                    gguf_tensor("token_embd_norm.weight", {64}, 0, 1024),
                    gguf_tensor("blk.0.shortconv.conv.weight", {3, 64}, 0, 1280),
                    gguf_tensor("blk.0.ffn_gate.weight", {64, 96}, 0, 2048),
                    gguf_tensor("blk.1.exp_probs_b.bias", {8}, 0, 2048 + 24576),
                    gguf_tensor(tensor.empty() ? "blk.1.attn_q_norm.weight" : tensor, {16}, 0,
                                2048 + 24576 + 32)};
    file.data_bytes = 2048 + 24576 + 32 + 64;
    return file;
  }
  Checkpoint open(const GgufFile& file) {
    write_bytes(folder_ / "model.gguf", file.bytes());
    return Checkpoint::open(folder_ / "model.gguf");
  }
  void expect_error(const std::string& key, const std::string& entry, std::string_view part,
                    ErrorKind kind = ErrorKind::kBadFile) {
    const Error error = error_of([&] { parse_model_config(open(file_with({{key, entry}}))); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"model.gguf", part})) << error.what();
  }
  TemporaryFolder folder_;
};

TEST_F(GgufLfmTest, LayersWithoutKeyValueHeadsAreConvolutions) {
  const Checkpoint checkpoint = open(file_with({}));
  const ModelConfig config = parse_model_config(checkpoint);
  EXPECT_EQ(config.model_type, "lfm2_moe");
  EXPECT_EQ(config.linear_layers, (std::vector<bool>{true, false, true}));
  EXPECT_EQ(config.convolution_taps, 3);
  EXPECT_FALSE(config.convolution_bias);
  EXPECT_EQ(config.num_kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.mlp_only_layers, (std::vector<int64_t>{0}));
  EXPECT_TRUE(config.norm_topk_prob.value_or(false));
  EXPECT_TRUE(config.tie_word_embeddings);
  const TensorInfo* taps = checkpoint.find("model.layers.0.conv.conv.weight");
  ASSERT_NE(taps, nullptr);
  EXPECT_EQ(taps->shape, (std::vector<int64_t>{64, 1, 3}));
  for (const auto& [name, in_file] :
       {std::pair{"model.embedding_norm.weight", "token_embd_norm.weight"},
        {"model.layers.0.conv.conv.weight", "blk.0.shortconv.conv.weight"},
        {"model.layers.0.feed_forward.w1.weight", "blk.0.ffn_gate.weight"},
        {"model.layers.1.feed_forward.expert_bias", "blk.1.exp_probs_b.bias"},
        {"model.layers.1.self_attn.q_layernorm.weight", "blk.1.attn_q_norm.weight"}}) {
    EXPECT_NE(checkpoint.find(name), nullptr) << name;
    EXPECT_EQ(checkpoint.name_in_file(name), in_file);
  }
}

TEST_F(GgufLfmTest, RefusesWhatCannotBe) {
  const std::string heads = "lfm2moe.attention.head_count_kv";
  const auto of_layers = [&](const std::vector<int32_t>& counts) {
    return gguf_array<int32_t>(heads, 5, counts);
  };
  expect_error(heads, "", "head_count_kv");
  expect_error(heads, gguf_u32(heads, 2), "3 layers");
  expect_error(heads, of_layers({0, 2}), "3 layers");
  expect_error(heads, of_layers({0, 2, -1}), "integers of 0");
  expect_error(heads, of_layers({0, 3, 0}), "divisor");
  expect_error(heads, of_layers({1, 2, 0}), "the same number", ErrorKind::kUnsupported);
  expect_error(heads, of_layers({0, 0, 0}), "heads in a layer", ErrorKind::kUnsupported);
  expect_error(heads, gguf_strings(heads, {"a", "b", "c"}), "integers of 0");
  const std::string taps = "lfm2moe.shortconv.l_cache";
  expect_error(taps, "", "shortconv.l_cache");
  expect_error(taps, gguf_u32(taps, 0), "shortconv.l_cache");
  expect_error(taps, gguf_u32(taps, 1), "shortconv.l_cache' is 1");
  expect_error("lfm2moe.expert_gating_func", gguf_u32("lfm2moe.expert_gating_func", 1), "sigmoid",
               ErrorKind::kUnsupported);
}

TEST_F(GgufLfmTest, TensorsThatItDoesNotHaveAreErrors) {
  for (const char* name : {"output_norm.weight", "blk.1.shortconv.conv.bias",
                           "blk.1.post_attention_norm.weight", "blk.1.attn_q.bias"}) {
    const Error error = error_of([&] { open(file_with({}, name)); });
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_TRUE(is_one_line_with(error, {"model.gguf", name, "lfm2moe"})) << error.what();
  }
}

}  // namespace
}  // namespace vitrine
