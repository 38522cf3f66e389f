// SPDX-License-Identifier: Apache-2.0
// The fields of LFM2 with experts in config.json: short convolutions, and names of its own.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/architecture.h"
#include "ops/decoder_ops.h"
#include "tests/checkpoint/folders.h"
#include "vitrine/checkpoint.h"

namespace vitrine {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::is_one_line_with;

json lfm_config() {
  return {{"model_type", "lfm2_moe"},
          {"vocab_size", 64},
          {"hidden_size", 64},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"max_position_embeddings", 128},
          {"norm_eps", 1e-5},
          {"intermediate_size", 96},
          {"moe_intermediate_size", 32},
          {"num_experts", 8},
          {"num_experts_per_tok", 2},
          {"num_dense_layers", 1},
          {"conv_L_cache", 4},
          {"layer_types", {"conv", "conv", "full_attention", "conv"}}};
}

json patched(const json& patch) {
  json config = lfm_config();
  config.merge_patch(patch);
  return config;
}

ModelConfig parse(const json& config) { return parse_model_config(config.dump(), "config.json"); }

TEST(LfmConfig, ReadsLayersAndConvolutions) {
  const ModelConfig config = parse(lfm_config());
  EXPECT_EQ(config.linear_layers, (std::vector<bool>{true, true, false, true}));
  EXPECT_TRUE(config.has_convolutions());
  EXPECT_EQ(config.convolution_taps, 4);
  EXPECT_FALSE(config.convolution_bias);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rotary_width(), 16);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.mlp_only_layers, (std::vector<int64_t>{0}));
  EXPECT_EQ(parse(patched({{"conv_bias", true}})).convolution_bias, true);
  EXPECT_EQ(parse(patched({{"routed_scaling_factor", 1.5}})).routed_scaling_factor, 1.5);
  const ModelConfig whole = parse(patched({{"layer_types", json(4, "full_attention")}}));
  EXPECT_TRUE(whole.linear_layers.empty());
  EXPECT_FALSE(whole.has_convolutions());
}

/// Returns whether routers of a config's graph correct scores for the choice.
bool corrects_scores(const ModelConfig& config) {
  for (const ops::OpNode& node :
       model::find_architecture(config.model_type, "config.json").build(config).nodes) {
    const auto* router = node.find<ops::RouterParameters>();
    if (router != nullptr) return !router->correction.empty();
  }
  return false;
}

TEST(LfmConfig, WhatIsLeftOutIsTransformersOwn) {
  const ModelConfig config =
      parse(patched({{"conv_L_cache", nullptr}, {"num_dense_layers", nullptr}}));
  EXPECT_EQ(config.convolution_taps, 3);
  EXPECT_EQ(config.mlp_only_layers, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(parse(patched({{"norm_eps", nullptr}})).rms_norm_eps, 1e-5);
  EXPECT_TRUE(corrects_scores(config));
  EXPECT_FALSE(corrects_scores(parse(patched({{"use_expert_bias", false}}))));
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(parse(patched({{"tie_word_embeddings", false}})).tie_word_embeddings);
  EXPECT_FALSE(parse(patched({{"tie_embedding", false}})).tie_word_embeddings);
  EXPECT_TRUE(parse(patched({{"tie_embedding", true}, {"tie_word_embeddings", false}}))
                  .tie_word_embeddings);
}

TEST(LfmConfig, RefusesWhatCannotBe) {
  const auto refuses = [](const json& patch, std::initializer_list<std::string_view> words) {
    const Error error = error_of([&] { parse(patched(patch)); });
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
  };
  refuses({{"layer_types", {"conv", "full_attention"}}}, {"config.json", "layer_types", "4", "2"});
  refuses({{"layer_types", nullptr}}, {"config.json", "layer_types", "4"});
  const json odd = {"conv", "sliding_attention", "full_attention", "conv"};
  refuses({{"layer_types", odd}}, {"layer_types", "sliding_attention", "'conv'"});
  refuses({{"layer_types", json(4, "conv")}}, {"layer_types", "full_attention"});
  for (const json& taps : {json(0), json(1), json(-1), json(17), json(1 << 30), json("four")}) {
    refuses({{"conv_L_cache", taps}}, {"config.json", "conv_L_cache"});
  }
  refuses({{"conv_bias", 1}}, {"conv_bias"});
  refuses({{"use_expert_bias", "yes"}}, {"use_expert_bias"});
  refuses({{"num_dense_layers", "x"}}, {"num_dense_layers", "'x'"});
  refuses({{"num_dense_layers", -1}}, {"num_dense_layers"});
  json without = lfm_config();
  without["norm_eps"] = nullptr;
  EXPECT_TRUE(is_one_line_with(error_of([&] { parse(without); }), {"norm_eps"}));
  refuses({{"norm_eps", 0}}, {"norm_eps", "above 0"});
}

}  // namespace
}  // namespace vitrine
