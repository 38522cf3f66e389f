// SPDX-License-Identifier: Apache-2.0
// The fields of Gated DeltaNet in config.json, and configs that wrap a text model's.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "checkpoint/model_config.h"
#include "tests/checkpoint/folders.h"
#include "vitrine/checkpoint.h"

namespace vitrine {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::is_one_line_with;

json delta_config() {
  return {{"model_type", "qwen3_next"},
          {"vocab_size", 64},
          {"hidden_size", 64},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 32},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-6},
          {"intermediate_size", 96},
          {"moe_intermediate_size", 32},
          {"num_experts", 8},
          {"num_experts_per_tok", 2},
          {"linear_num_key_heads", 2},
          {"linear_num_value_heads", 6},
          {"linear_key_head_dim", 16},
          {"linear_value_head_dim", 24},
          {"linear_conv_kernel_dim", 4}};
}

json patched(const json& patch) {
  json config = delta_config();
  config.merge_patch(patch);
  return config;
}

ModelConfig parse(const json& config) { return parse_model_config(config.dump(), "config.json"); }

TEST(DeltaConfig, ReadsLayersAndWidths) {
  const ModelConfig config = parse(delta_config());
  EXPECT_EQ(config.linear_layers, (std::vector<bool>{true, true, true, false}));
  EXPECT_TRUE(config.is_linear_layer(0));
  EXPECT_FALSE(config.is_linear_layer(3));
  EXPECT_EQ(config.linear_channels(), 2 * 32 + 144);
  EXPECT_EQ(config.linear_taps, 4);
  EXPECT_EQ(config.linear_layout, LinearLayout::kPublished);
  EXPECT_EQ(parse(patched({{"linear_layout", "converted"}})).linear_layout,
            LinearLayout::kConverted);
  EXPECT_EQ(config.rotary_width(), 8) << "a quarter where nothing is said";
  EXPECT_EQ(parse(patched({{"rope_parameters", {{"partial_rotary_factor", 0.5}}}})).rotary_width(),
            16);
  EXPECT_EQ(parse(patched({{"full_attention_interval", 2}})).linear_layers,
            (std::vector<bool>{true, false, true, false}));
  const json types = {"full_attention", "linear_attention", "full_attention", "full_attention"};
  EXPECT_EQ(parse(patched({{"layer_types", types}})).linear_layers,
            (std::vector<bool>{false, true, false, false}));
  const json all(4, "full_attention");
  EXPECT_TRUE(parse(patched({{"layer_types", all}})).linear_layers.empty());
}

TEST(DeltaConfig, RefusesWhatCannotBe) {
  const auto refuses = [](const json& patch, std::initializer_list<std::string_view> words) {
    const Error error = error_of([&] { parse(patched(patch)); });
    EXPECT_TRUE(is_one_line_with(error, words)) << error.what();
  };
  refuses({{"layer_types", {"linear_attention"}}}, {"config.json", "layer_types", "4"});
  const json odd = {"full_attention", "sliding_attention", "linear_attention", "full_attention"};
  refuses({{"layer_types", odd}}, {"layer_types", "sliding_attention", "linear_attention"});
  refuses({{"layer_types", json(4, "linear_attention")}}, {"layer_types", "full_attention"});
  refuses({{"full_attention_interval", 5}}, {"full_attention_interval", "5", "full_attention"});
  refuses({{"linear_layout", "tiled"}}, {"linear_layout", "tiled", "converted"});
  refuses({{"linear_layout", "converted_whole"}, {"model_type", "qwen3_5_text"}},
          {"linear_layout", "converted_whole", "qwen3_next"});
  refuses({{"linear_num_value_heads", 5}}, {"linear_num_value_heads", "5", "multiple"});
  for (const char* field : {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
                            "linear_value_head_dim", "linear_conv_kernel_dim"}) {
    json without = delta_config();
    without[field] = nullptr;
    EXPECT_TRUE(is_one_line_with(error_of([&] { parse(without); }), {field, "is missing"}));
    refuses({{field, 0}}, {field, "0"});
    refuses({{field, 1 << 24}}, {field});
  }
}

TEST(DeltaConfig, AWrapperHasATextPart) {
  json text = delta_config();
  text["model_type"] = "qwen3_5_moe_text";
  const json wrapper = {{"model_type", "qwen3_5_moe"},
                        {"tie_word_embeddings", true},
                        {"vision_config", {{"depth", 2}}},
                        {"text_config", text}};
  const ModelConfig config = parse(wrapper);
  EXPECT_EQ(config.model_type, "qwen3_5_moe_text");
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_TRUE(config.norm_topk_prob.value_or(false)) << "these have no such field";
  json without = wrapper;
  without.erase("text_config");
  EXPECT_TRUE(is_one_line_with(error_of([&] { parse(without); }), {"config.json", "text_config"}));
  without["text_config"] = 3;
  EXPECT_TRUE(is_one_line_with(error_of([&] { parse(without); }), {"config.json", "text_config"}));
}

}  // namespace
}  // namespace vitrine
