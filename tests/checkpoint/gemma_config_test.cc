// SPDX-License-Identifier: Apache-2.0
// The fields of Gemma 4's text models in config.json, and wrappers around text models.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/gemma4.h"
#include "tests/checkpoint/folders.h"
#include "vitrine/checkpoint.h"

namespace vitrine {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::is_one_line_with;

json gemma_config() {
  return {{"model_type", "gemma4_text"},
          {"vocab_size", 64},
          {"hidden_size", 64},
          {"num_hidden_layers", 6},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"global_head_dim", 32},
          {"num_global_key_value_heads", 1},
          {"attention_k_eq_v", true},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-6},
          {"intermediate_size", 96},
          {"enable_moe_block", true},
          {"num_experts", 8},
          {"top_k_experts", 2},
          {"moe_intermediate_size", 32},
          {"sliding_window", 16},
          {"final_logit_softcapping", 30.0},
          {"hidden_size_per_layer_input", 0}};
}

json patched(const json& patch) {
  json config = gemma_config();
  config.merge_patch(patch);
  return config;
}

ModelConfig parse(const json& config) { return parse_model_config(config.dump(), "config.json"); }

TEST(GemmaConfig, ReadsLayersOfTwoKinds) {
  const ModelConfig config = parse(gemma_config());
  EXPECT_EQ(config.slides, (std::vector<bool>{true, true, true, true, true, false}));
  EXPECT_EQ(config.windows, (std::vector<int64_t>{16, 16, 16, 16, 16, 0}));
  EXPECT_EQ(config.layer_head_dim(0), 16);
  EXPECT_EQ(config.layer_head_dim(5), 32);
  EXPECT_EQ(config.layer_kv_heads(0), 2);
  EXPECT_EQ(config.layer_kv_heads(5), 1);
  EXPECT_TRUE(config.is_global_layer(5));
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.sliding_rope_theta, 1e4);
  EXPECT_EQ(config.global_rotary_share, 0.25);
  EXPECT_EQ(config.embedding_multiplier, 8.0);
  EXPECT_EQ(config.own_fields<model::Gemma4Fields>().final_logit_softcapping, 30.0);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.num_experts_per_token, 2);
  // The heads of the others count only where values are keys.
  EXPECT_EQ(parse(patched({{"attention_k_eq_v", false}})).layer_kv_heads(5), 2);
  // A window as long as the context hides nothing, but the layers stay of their kind.
  const ModelConfig whole = parse(patched({{"sliding_window", 128}}));
  EXPECT_EQ(whole.windows, std::vector<int64_t>(6, 0));
  EXPECT_FALSE(whole.is_global_layer(0));
  EXPECT_EQ(parse(patched({{"enable_moe_block", false}})).num_experts, 0);
}

TEST(GemmaConfig, ReadsFieldsOfSingleLayers) {
  json config = gemma_config();
  config["per_layer_config"]["5"] = {{"head_dim", 64}, {"num_key_value_heads", 4}};
  EXPECT_EQ(parse(config).layer_head_dim(5), 64);
  EXPECT_EQ(parse(config).layer_kv_heads(5), 4);
  EXPECT_EQ(parse(config).layer_kv_heads(4), 2);
}

TEST(GemmaConfig, SharesKeysAndValuesOfTheLastLayerOfAKind) {
  const ModelConfig config =
      parse(patched({{"num_kv_shared_layers", 3},
                     {"layer_types",
                      {"sliding_attention", "full_attention", "sliding_attention",
                       "sliding_attention", "full_attention", "full_attention"}}}));
  const std::vector<int64_t> expected = {0, 1, 2, 2, 1, 1};
  for (int64_t layer = 0; layer < 6; ++layer) {
    EXPECT_EQ(config.kv_source(layer), expected[static_cast<size_t>(layer)]) << layer;
  }
}

TEST(GemmaConfig, NamesWhatIsWrong) {
  const auto expect_error = [](const json& patch, ErrorKind kind, std::string_view part) {
    const Error error = error_of([&] { parse(patched(patch)); });
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_TRUE(is_one_line_with(error, {"config.json", part})) << error.what();
  };
  const auto bad = ErrorKind::kBadFile, unsupported = ErrorKind::kUnsupported;
  expect_error({{"layer_types", {"full_attention"}}}, bad, "'layer_types'");
  expect_error({{"layer_types", json::array({"a", "a", "a", "a", "a", "a"})}}, unsupported, "'a'");
  expect_error({{"sliding_window", 0}}, bad, "'sliding_window'");
  expect_error({{"num_key_value_heads", 3}}, bad, "'num_key_value_heads' is 3");
  expect_error({{"num_global_key_value_heads", 3}}, bad, "'num_global_key_value_heads' is 3");
  expect_error({{"head_dim", 15}}, bad, "'head_dim' is 15");
  expect_error({{"global_head_dim", 31}}, bad, "'global_head_dim' is 31");
  expect_error({{"global_head_dim", 1 << 20}}, bad, "'global_head_dim'");
  expect_error({{"hidden_activation", "silu"}}, unsupported, "'hidden_activation'");
  expect_error({{"use_bidirectional_attention", "all"}}, unsupported,
               "'use_bidirectional_attention'");
  expect_error({{"num_kv_shared_layers", 6}}, bad, "'num_kv_shared_layers' is 6");
  expect_error({{"num_kv_shared_layers", 1}}, bad, "layer 5 has none of its kind");
  expect_error({{"num_experts", nullptr}}, bad, "'num_experts'");
  expect_error({{"top_k_experts", 9}}, bad, "'top_k_experts' is 9");
  expect_error({{"moe_intermediate_size", nullptr}}, bad, "'moe_intermediate_size'");
  expect_error({{"final_logit_softcapping", -1.0}}, bad, "'final_logit_softcapping'");
  expect_error({{"hidden_size_per_layer_input", 16}, {"vocab_size_per_layer_input", 63}}, bad,
               "'vocab_size_per_layer_input' is 63");
  expect_error({{"rope_parameters", {{"rope_theta", 1e4}}}}, bad, "'sliding_attention'");
  expect_error({{"rope_parameters",
                 {{"sliding_attention", {{"rope_type", "yarn"}, {"rope_theta", 1e4}}},
                  {"full_attention", {{"rope_theta", 1e4}}}}}},
               unsupported, "'rope_type'");
  expect_error({{"per_layer_config", {{"9", {{"head_dim", 32}}}}}}, bad, "'9'");
  expect_error({{"per_layer_config", {{"0", {{"head_dim", 32}}}}}}, unsupported, "'0'");
  expect_error({{"per_layer_config", {{"5", {{"sliding_window", 8}}}}}}, unsupported,
               "'sliding_window'");
}

TEST(Wrappers, ReadTheTextModel) {
  const json wrapper = {{"model_type", "gemma4"},
                        {"dtype", "bfloat16"},
                        {"eos_token_id", {1, 7}},
                        {"vision_config", {{"hidden_size", 8}}},
                        {"text_config", gemma_config()}};
  const ModelConfig config = parse(wrapper);
  EXPECT_EQ(config.model_type, "gemma4_text");
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.dtype, DType::kBF16);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{1, 7}));
  json both = wrapper;
  both["text_config"]["eos_token_id"] = 3;
  EXPECT_EQ(parse(both).eos_token_ids, (std::vector<int64_t>{1, 3, 7}));
  both["text_config"]["eos_token_id"] = {3, "x"};
  EXPECT_TRUE(is_one_line_with(error_of([&] { parse(both); }), {"'eos_token_id'", "'x'"}));
  json bare = wrapper;
  bare.erase("text_config");
  EXPECT_TRUE(is_one_line_with(error_of([&] { parse(bare); }), {"config.json", "'text_config'"}));
  json bad = wrapper;
  bad["text_config"]["head_dim"] = 15;
  EXPECT_TRUE(is_one_line_with(error_of([&] { parse(bad); }),
                               {"config.json: text_config", "'head_dim' is 15"}));
}

TEST(Wrappers, NameTheirTextModelWhereItDoesNot) {
  for (const auto& [type, text_type] : {std::pair{"kimi_k25", "deepseek_v3"},
                                        {"mistral3", "mistral"},
                                        {"qwen3_5_moe", "qwen3_5_moe_text"}}) {
    json text = json::parse(testing::small_config());
    text.erase("model_type");
    text.update({{"n_group", 1},
                 {"topk_group", 1},
                 {"kv_lora_rank", 32},
                 {"qk_nope_head_dim", 24},
                 {"qk_rope_head_dim", 16},
                 {"v_head_dim", 20},
                 {"num_key_value_heads", 4},
                 {"layer_types", nullptr},
                 {"full_attention_interval", 1}});
    const ModelConfig config = parse({{"model_type", type}, {"text_config", text}});
    EXPECT_EQ(config.model_type, text_type);
    for (const json& broken : {json(nullptr), json(3), json::array(), json("x")}) {
      const Error error = error_of([&] { parse({{"model_type", type}, {"text_config", broken}}); });
      EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
      EXPECT_TRUE(is_one_line_with(error, {"config.json", "'text_config'", "expected"}))
          << error.what();
    }
  }
}

TEST(Wrappers, SayWhetherTheHeadIsTheEmbeddingUnlessAFileHasOne) {
  const auto is_tied = [](const json& outer, const json& inner, const std::string& tensor) {
    json text = json::parse(testing::small_config());
    text["tie_word_embeddings"] = inner;
    const testing::TemporaryFolder folder;
    testing::write_bytes(
        folder / "config.json",
        json{{"model_type", "mistral3"}, {"tie_word_embeddings", outer}, {"text_config", text}}
            .dump());
    testing::write_bytes(folder / "model.safetensors",
                         testing::safetensors_bytes("{\"" + tensor +
                                                        "\": {\"dtype\": \"F32\", \"shape\": "
                                                        "[1], \"data_offsets\": [0, 4]}}",
                                                    4));
    return parse_model_config(Checkpoint::open(folder.path())).tie_word_embeddings;
  };
  const std::string head = "language_model.lm_head.weight", other = "language_model.model.a";
  EXPECT_TRUE(is_tied(true, false, other));
  EXPECT_TRUE(is_tied(nullptr, true, other));
  EXPECT_FALSE(is_tied(false, true, other));
  EXPECT_FALSE(is_tied(nullptr, false, other));
  EXPECT_FALSE(is_tied(true, true, head));
}

TEST(Wrappers, MayQuantizeTheirTextModelAlone) {
  const testing::TemporaryFolder folder;
  json config = {{"model_type", "kimi_k25"}, {"text_config", json::parse(testing::small_config())}};
  const auto open = [&] {
    testing::write_bytes(folder / "config.json", config.dump());
    testing::write_bytes(folder / "model.safetensors", testing::safetensors_bytes("{}", 0));
    return Checkpoint::open(folder.path());
  };
  EXPECT_FALSE(open().is_quantized());
  config["text_config"]["quantization_config"] = {{"quant_method", "fp8"}};
  EXPECT_TRUE(open().is_quantized());
  config["text_config"]["quantization_config"] = {{"quant_method", "exotic"}};
  EXPECT_TRUE(is_one_line_with(error_of(open), {"config.json: text_config: quantization_config",
                                                "'quant_method'", "'exotic'"}));
  config["text_config"]["quantization_config"] = 4;
  EXPECT_TRUE(is_one_line_with(
      error_of(open), {"config.json: text_config", "'quantization_config' is 4", "expected"}));
}

TEST(Wrappers, GiveTensorsTheirNamesInATextModel) {
  const auto open = [](const std::string& header) {
    const testing::TemporaryFolder folder;
    testing::write_bytes(folder / "config.json", testing::small_config());
    testing::write_bytes(folder / "model.safetensors", testing::safetensors_bytes(header, 8));
    return Checkpoint::open(folder.path());
  };
  const auto tensor = [](const std::string& name, int begin) {
    return "\"" + name + "\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [" +
           std::to_string(begin) + ", " + std::to_string(begin + 4) + "]}";
  };
  for (const char* prefix : {"model.language_model.", "language_model.model."}) {
    const Checkpoint checkpoint = open("{" + tensor(std::string(prefix) + "norm.weight", 0) + ", " +
                                       tensor("model.vision_tower.norm.weight", 4) + "}");
    EXPECT_NE(checkpoint.find("model.norm.weight"), nullptr);
    EXPECT_NE(checkpoint.find("model.vision_tower.norm.weight"), nullptr);
  }
  EXPECT_TRUE(is_one_line_with(error_of([&] {
                                 open("{" + tensor("model.language_model.norm.weight", 0) + ", " +
                                      tensor("model.norm.weight", 4) + "}");
                               }),
                               {"model.norm.weight", "two names"}));
}

}  // namespace
}  // namespace vitrine
