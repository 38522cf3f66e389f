// SPDX-License-Identifier: Apache-2.0
// The fields of latent attention in config.json.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/model_config.h"
#include "tests/checkpoint/folders.h"
#include "vitrine/checkpoint.h"

namespace vitrine {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::is_one_line_with;

json latent_config() {
  return {{"model_type", "deepseek_v3"},
          {"vocab_size", 64},
          {"hidden_size", 64},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 4},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-5},
          {"intermediate_size", 96},
          {"moe_intermediate_size", 32},
          {"n_routed_experts", 8},
          {"n_shared_experts", 1},
          {"num_experts_per_tok", 2},
          {"n_group", 2},
          {"topk_group", 1},
          {"first_k_dense_replace", 1},
          {"kv_lora_rank", 32},
          {"q_lora_rank", 48},
          {"qk_nope_head_dim", 24},
          {"qk_rope_head_dim", 16},
          {"v_head_dim", 20},
          {"num_nextn_predict_layers", 1}};
}

json patched(const json& patch) {
  json config = latent_config();
  config.merge_patch(patch);
  return config;
}

ModelConfig parse(const json& config) { return parse_model_config(config.dump(), "config.json"); }

TEST(LatentConfig, ReadsWidths) {
  const ModelConfig config = parse(latent_config());
  EXPECT_TRUE(config.is_latent());
  EXPECT_EQ(config.head_dim, 40);
  EXPECT_EQ(config.rotary_width(), 16);
  EXPECT_EQ(config.num_kv_heads, 1);
  EXPECT_EQ(config.stored_key_width(), 48);
  EXPECT_EQ(config.stored_value_width(), 0);
  EXPECT_EQ(config.q_lora_rank, 48);
  EXPECT_TRUE(config.rope_interleave);
  EXPECT_EQ(config.num_draft_layers, 1);
  EXPECT_FALSE(config.is_sparse_layer(0));
  EXPECT_TRUE(config.is_sparse_layer(1));
  json whole = latent_config();
  whole["q_lora_rank"] = nullptr;  // absent it is the family's
  EXPECT_EQ(parse(whole).q_lora_rank, 0);
  EXPECT_EQ(parse(patched({{"model_type", "kimi_k2"}})).kv_lora_rank, 32);
  const ModelConfig other = parse(patched({{"model_type", "qwen3_moe"}}));
  EXPECT_FALSE(other.is_latent());
  EXPECT_EQ(other.stored_value_width(), other.head_dim);
}

TEST(LatentConfig, HasEachFamilysDefaults) {
  const json unsaid = {{"first_k_dense_replace", nullptr}};
  EXPECT_EQ(parse(patched(unsaid)).mlp_only_layers, (std::vector<int64_t>{0, 1, 2}));
  json lite = unsaid;
  lite["model_type"] = "glm4_moe_lite";
  EXPECT_EQ(parse(patched(lite)).mlp_only_layers, (std::vector<int64_t>{0}));
  lite["mlp_layer_types"] = {"sparse", "dense", "sparse", "dense"};
  EXPECT_EQ(parse(patched(lite)).mlp_only_layers, (std::vector<int64_t>{1, 3}));
  json second = unsaid;
  second["model_type"] = "deepseek_v2";
  EXPECT_TRUE(parse(patched(second)).mlp_only_layers.empty());
  // Its groups count only where the method says so.
  EXPECT_EQ(parse(patched(second)).router_groups, 1);
  second["topk_method"] = "group_limited_greedy";
  EXPECT_EQ(parse(patched(second)).router_groups, 2);
}

TEST(LatentConfig, ScalesAttentionByMscaleSquared) {
  json yarn = {{"type", "yarn"}, {"factor", 40}, {"mscale", 1.0}, {"mscale_all_dim", 0.707}};
  const RopeScaling scaling = parse(patched({{"rope_scaling", yarn}})).rope_scaling;
  const double all = 0.1 * 0.707 * std::log(40.0) + 1.0;
  EXPECT_NEAR(scaling.latent_scale(), all * all, 1e-12);
  EXPECT_NEAR(scaling.attention_factor, (0.1 * std::log(40.0) + 1.0) / all, 1e-12);
  yarn.erase("mscale_all_dim");
  EXPECT_EQ(parse(patched({{"rope_scaling", yarn}})).rope_scaling.latent_scale(), 1.0);
}

TEST(LatentConfig, NamesWhatIsWrong) {
  const auto expect_error = [](const json& patch, ErrorKind kind, std::string_view part) {
    const Error error = error_of([&] { parse(patched(patch)); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"config.json", part})) << error.what();
  };
  for (const char* name : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"}) {
    const std::string quoted = std::string("'") + name + "'";
    for (const json& value : {json(nullptr), json(0), json(-1), json("8"), json(INT64_MAX)}) {
      json config = latent_config();
      config[name] = value;
      EXPECT_TRUE(is_one_line_with(error_of([&] { parse(config); }), {quoted}));
    }
  }
  const auto bad = ErrorKind::kBadFile, unsupported = ErrorKind::kUnsupported;
  expect_error({{"q_lora_rank", 0}}, bad, "'q_lora_rank' is 0");
  expect_error({{"qk_rope_head_dim", 7}}, bad, "'qk_rope_head_dim' is 7");
  expect_error({{"kv_lora_rank", 1 << 20}}, bad, "'kv_lora_rank'");
  expect_error({{"v_head_dim", 1 << 20}}, bad, "'qk_nope_head_dim'");
  expect_error({{"num_key_value_heads", 2}}, bad, "'num_key_value_heads' is 2");
  expect_error({{"mlp_layer_types", {"dense"}}}, bad, "found 1");
  expect_error({{"mlp_layer_types", {"dense", "dense", "dense", "thin"}}}, unsupported, "'thin'");
  expect_error({{"scoring_func", "softmax"}}, unsupported, "'scoring_func'");
  expect_error({{"topk_method", "greedy"}}, unsupported, "'topk_method'");
  expect_error({{"moe_layer_freq", 2}}, unsupported, "'moe_layer_freq'");
}

}  // namespace
}  // namespace vitrine
