// SPDX-License-Identifier: Apache-2.0
// config.json in all of its spellings, and what it must not say.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/model_config.h"
#include "folders.h"
#include "model/architecture.h"
#include "ops/decoder_ops.h"
#include "tests/support/test_data.h"

namespace vitrine {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::is_one_line_with;

ModelConfig oracle_config(const std::string& name) {
  return parse_model_config(Checkpoint::open(testing_support::test_data("oracles/" + name)));
}

ModelConfig parse(const json& config, const std::string& generation = "") {
  return parse_model_config(config.dump(), "config.json", generation, "generation_config.json");
}

/// small_config() with a JSON merge patch (null removes a field).
json patched(const json& patch) {
  json config = json::parse(testing::small_config());
  config.merge_patch(patch);
  return config;
}

void expect_error(const json& config, ErrorKind kind,
                  std::initializer_list<std::string_view> parts) {
  const Error error = error_of([&] { parse(config); });
  EXPECT_EQ(error.kind(), kind) << error.what();
  EXPECT_TRUE(is_one_line_with(error, parts)) << error.what();
  EXPECT_TRUE(is_one_line_with(error, {"config.json", "expected"})) << error.what();
}

TEST(Config, ReadsEveryOracle) {
  const ModelConfig moe = oracle_config("qwen3_moe");
  EXPECT_EQ(moe.model_type, "qwen3_moe");
  EXPECT_EQ(moe.architectures, std::vector<std::string>{"Qwen3MoeForCausalLM"});
  EXPECT_EQ(moe.num_experts, 8);
  EXPECT_EQ(moe.num_experts_per_token, 2);
  EXPECT_EQ(moe.moe_intermediate_size, 64);
  EXPECT_EQ(moe.head_dim, 32);
  EXPECT_EQ(moe.norm_topk_prob, std::optional(true));
  EXPECT_EQ(moe.dtype, DType::kBF16);
  EXPECT_EQ(moe.bos_token_id, std::optional<int64_t>(0));
  EXPECT_EQ(moe.eos_token_ids, std::vector<int64_t>{1});
  EXPECT_EQ(moe.rms_norm_eps, 1e-5);

  const ModelConfig sparse = oracle_config("qwen3_moe_sparse2");
  EXPECT_TRUE(sparse.tie_word_embeddings);
  EXPECT_EQ(sparse.norm_topk_prob, std::optional(false));
  EXPECT_FALSE(sparse.is_sparse_layer(0));
  EXPECT_TRUE(sparse.is_sparse_layer(1));
  EXPECT_FALSE(sparse.is_sparse_layer(2));
  EXPECT_EQ(sparse.intermediate_size, 192);

  const ModelConfig shared = oracle_config("qwen2_moe");
  EXPECT_EQ(shared.shared_expert_intermediate_size, 96);
  EXPECT_EQ(shared.qkv_bias, std::optional(true));
  EXPECT_EQ(shared.head_dim, 16);

  const ModelConfig mixtral = oracle_config("mixtral");
  EXPECT_EQ(mixtral.num_experts, 4);
  EXPECT_EQ(mixtral.moe_intermediate_size, 192);
  EXPECT_EQ(mixtral.norm_topk_prob, std::optional(true));
  EXPECT_EQ(mixtral.rope_theta, 1e6);
  EXPECT_EQ(mixtral.head_dim, 16);

  const ModelConfig olmoe = oracle_config("olmoe");
  EXPECT_EQ(olmoe.norm_topk_prob, std::optional(false));
  EXPECT_FALSE(olmoe.clip_qkv.has_value());
  EXPECT_EQ(olmoe.num_kv_heads, 4);

  const ModelConfig granite = oracle_config("granitemoe");
  EXPECT_EQ(granite.embedding_multiplier, 12.0);
  EXPECT_EQ(granite.attention_multiplier, std::optional(0.0156));
  EXPECT_EQ(granite.residual_multiplier, 0.22);
  EXPECT_EQ(granite.logits_scaling, 6.0);

  for (const char* name : {"llama", "qwen3"}) {
    const ModelConfig dense = oracle_config(name);
    EXPECT_EQ(dense.num_experts, 0);
    EXPECT_EQ(dense.intermediate_size, 192);
    EXPECT_FALSE(dense.is_sparse_layer(1));
  }
}

TEST(Config, TakesTheOlderAndTheNewerSpellingAlike) {
  const json older = patched({{"rope_theta", 5e5}});
  json newer = older;
  newer.erase("rope_theta");
  newer.erase("torch_dtype");
  newer.erase("num_experts");
  newer["dtype"] = "bfloat16";
  newer["num_local_experts"] = 4;
  newer["rope_parameters"] = {{"rope_theta", 5e5}, {"rope_type", "default"}};
  for (const json& config : {older, newer}) {
    const ModelConfig parsed = parse(config);
    EXPECT_EQ(parsed.num_experts, 4);
    EXPECT_EQ(parsed.rope_theta, 5e5);
    EXPECT_EQ(parsed.dtype, DType::kBF16);
  }
  json both = newer;
  both["num_experts"] = 4;
  EXPECT_EQ(parse(both).num_experts, 4);
  both["num_experts"] = 5;
  expect_error(both, ErrorKind::kBadFile, {"'num_local_experts' is 4", "expected 5"});
  EXPECT_EQ(parse(patched({{"torch_dtype", "torch.float16"}})).dtype, DType::kF16);
  EXPECT_EQ(parse(patched({{"num_experts", nullptr}, {"n_routed_experts", 8}})).num_experts, 8);
}

TEST(Config, FillsInWhatMayBeAbsent) {
  json fields = json::parse(testing::small_config());
  fields.update({{"head_dim", nullptr},
                 {"num_key_value_heads", nullptr},
                 {"moe_intermediate_size", nullptr},
                 {"rope_theta", nullptr},
                 {"torch_dtype", nullptr}});
  const ModelConfig config = parse(fields);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.num_kv_heads, 4);
  EXPECT_EQ(config.moe_intermediate_size, 96);
  EXPECT_EQ(config.rope_theta, 1e4);
  EXPECT_EQ(config.dtype, DType::kF32);
  // A field that is absent is the family's, one that is null nobody's.
  EXPECT_EQ(parse(patched({{"moe_intermediate_size", nullptr}})).moe_intermediate_size, 768);
  EXPECT_EQ(config.norm_topk_prob, std::optional(false));
  EXPECT_EQ(parse(patched({{"model_type", "mixtral"}, {"rope_theta", nullptr}})).rope_theta, 1e6);
}

TEST(Config, DoesNotJudgeTheArchitecture) {
  EXPECT_EQ(parse(patched({{"model_type", "never_heard_of"}})).model_type, "never_heard_of");
}

TEST(Config, JoinsTheEndTokensOfBothFiles) {
  EXPECT_EQ(parse(patched(json::object())).eos_token_ids, (std::vector<int64_t>{1, 3}));
  const ModelConfig config =
      parse(patched(json::object()), R"({"eos_token_id": [9, 1], "bos_token_id": 2})");
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{1, 3, 9}));
  EXPECT_EQ(config.bos_token_id, std::optional<int64_t>(2));
  const Error error = error_of([] { parse(patched(json::object()), R"({"eos_token_id": 64})"); });
  EXPECT_TRUE(is_one_line_with(error, {"generation_config.json", "'eos_token_id' is 64"}));
}

TEST(Config, ChecksEveryNumber) {
  for (const char* field : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
                            "max_position_embeddings", "num_experts_per_tok", "rms_norm_eps"}) {
    for (const json& value : {json(nullptr), json(0), json(-1), json(1e300), json(INT64_MAX),
                              json(UINT64_MAX), json("8"), json(true), json::array()}) {
      json config = json::parse(testing::small_config());
      config[field] = value;
      const std::string quoted = std::string("'") + field + "'";
      expect_error(config, ErrorKind::kBadFile, {quoted});
    }
  }
  const auto bad = ErrorKind::kBadFile;
  expect_error(patched({{"num_key_value_heads", 3}}), bad, {"'num_key_value_heads' is 3"});
  expect_error(patched({{"head_dim", 33}}), bad, {"'head_dim' is 33"});
  expect_error(patched({{"head_dim", nullptr}, {"hidden_size", 66}}), bad, {"'hidden_size' is 66"});
  expect_error(patched({{"head_dim", 1 << 20}}), bad, {"'head_dim'"});
  expect_error(patched({{"num_experts_per_tok", 5}}), bad,
               {"'num_experts_per_tok' is 5", "1 to 4"});
  expect_error(patched({{"decoder_sparse_step", 0}}), bad, {"'decoder_sparse_step' is 0"});
  expect_error(patched({{"mlp_only_layers", {2}}}), bad, {"'mlp_only_layers'"});
  json sizes = patched({{"mlp_only_layers", {0}}});
  sizes["intermediate_size"] = nullptr;
  expect_error(sizes, bad, {"'intermediate_size' is missing", "layer 0"});
  sizes["moe_intermediate_size"] = nullptr;
  expect_error(sizes, bad, {"'moe_intermediate_size' is missing"});
  expect_error(patched({{"model_type", 3}}), bad, {"'model_type' is 3"});
  expect_error(patched({{"eos_token_id", {1, "x"}}}), bad, {"'eos_token_id'"});
  expect_error(patched({{"bos_token_id", -1}}), bad, {"'bos_token_id' is -1"});
  expect_error(patched({{"tie_word_embeddings", 1}}), bad, {"'tie_word_embeddings' is 1"});
  expect_error(patched({{"rope_theta", 0}}), bad, {"'rope_theta' is 0"});
  expect_error(patched({{"logits_scaling", 0}}), bad, {"'logits_scaling' is 0"});
  expect_error(patched({{"clip_qkv", -8}}), bad, {"'clip_qkv' is -8"});
  expect_error(patched({{"architectures", "x"}}), bad, {"'architectures'"});
  expect_error(patched({{"rope_parameters", {{"rope_theta", 2e4}}}}), bad,
               {"rope_parameters", "'rope_theta'"});
}

TEST(Config, RopeScaling) {
  const auto scaled = [](const json& scaling) {
    return parse(patched({{"rope_scaling", scaling}})).rope_scaling;
  };
  const RopeScaling linear = scaled({{"type", "linear"}, {"factor", 4.0}});
  EXPECT_EQ(linear.kind, RopeScaling::Kind::kLinear);
  EXPECT_EQ(linear.factor, 4.0);
  EXPECT_EQ(linear.attention_factor, 1.0);
  const RopeScaling yarn = scaled({{"rope_type", "yarn"}, {"factor", 8}, {"beta_slow", nullptr}});
  EXPECT_EQ(yarn.kind, RopeScaling::Kind::kYarn);
  EXPECT_EQ(yarn.original_max_position_embeddings, 128);
  EXPECT_EQ(yarn.beta_slow, 1.0);
  EXPECT_NEAR(yarn.attention_factor, 1.2079441541679836, 1e-15);
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 64}};
  EXPECT_EQ(scaled(llama3).kind, RopeScaling::Kind::kLlama3);
  const json list(16, 2.0);
  const RopeScaling divisors = scaled({{"rope_type", "longrope"},
                                       {"short_factor", list},
                                       {"long_factor", list},
                                       {"attention_factor", 1.0}});
  EXPECT_EQ(divisors.kind, RopeScaling::Kind::kDivisors);
  EXPECT_EQ(divisors.divisors, std::vector<double>(16, 2.0));

  const auto expect_bad = [](json scaling, const json& patch, std::string_view part,
                             ErrorKind kind = ErrorKind::kBadFile) {
    scaling.merge_patch(patch);
    expect_error(patched({{"rope_scaling", scaling}}), kind, {"rope_scaling", part});
  };
  expect_bad(llama3, {{"factor", nullptr}}, "'factor'");
  expect_bad(llama3, {{"factor", 0}}, "'factor'");
  expect_bad(llama3, {{"high_freq_factor", 1.0}}, "'high_freq_factor'");
  expect_bad(llama3, {{"original_max_position_embeddings", 0}}, "'original_max");
  expect_bad({{"type", "longrope"}, {"short_factor", list}, {"long_factor", json(16, 3.0)}},
             json::object(), "'long_factor'", ErrorKind::kUnsupported);
  expect_bad({{"type", "longrope"}, {"short_factor", json(15, 2.0)}}, json::object(),
             "'short_factor'");
  expect_bad({{"type", "longrope"}, {"short_factor", json(16, "x")}}, json::object(),
             "'short_factor'");
}

TEST(Config, RefusesWhatItCannotRun) {
  const auto kind = ErrorKind::kUnsupported;
  for (const char* type : {"dynamic", "su"}) {
    const std::string quoted = std::string("'") + type + "'";
    expect_error(patched({{"rope_scaling", {{"rope_type", type}, {"factor", 8}}}}), kind,
                 {"rope_scaling", quoted});
    expect_error(patched({{"rope_scaling", {{"type", type}}}}), kind, {"rope_scaling", quoted});
    expect_error(patched({{"rope_parameters", {{"rope_type", type}}}}), kind,
                 {"rope_parameters", quoted});
  }
  EXPECT_NO_THROW(parse(patched({{"rope_scaling", {{"rope_type", "default"}}}})));
  expect_error(patched({{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}}), kind,
               {"'full_attention'"});
  expect_error(patched({{"partial_rotary_factor", 0.5}}), kind, {"'partial_rotary_factor'"});
  expect_error(patched({{"hidden_act", "gelu"}}), kind, {"'hidden_act' is 'gelu'"});
  expect_error(patched({{"torch_dtype", "float8_e4m3fn"}}), kind, {"'torch_dtype'"});
  expect_error(patched({{"layer_types", {"linear_attention", "full_attention"}}}), kind,
               {"'linear_attention'"});
}

TEST(Config, KnowsWhichLayersSlide) {
  const auto windows = [](const json& patch) {
    json config = patched({{"model_type", "qwen3"}, {"num_experts", nullptr}});
    config.merge_patch(patch);
    return parse(config).windows;
  };
  using Windows = std::vector<int64_t>;
  const json asked = {{"sliding_window", 64}, {"use_sliding_window", true}};
  const auto with = [](json base, const json& more) {
    base.update(more);
    return base;
  };
  EXPECT_EQ(windows(with(asked, {{"max_window_layers", 0}})), (Windows{64, 64}));
  EXPECT_EQ(windows(with(asked, {{"max_window_layers", 1}})), (Windows{0, 64}));
  EXPECT_EQ(windows(with(asked, {{"layer_types", {"full_attention", "sliding_attention"}}})),
            (Windows{0, 64}));
  EXPECT_EQ(windows({{"sliding_window", 64}, {"model_type", "mixtral"}}), (Windows{64, 64}));
  // As wide as the context: it hides nothing.
  EXPECT_EQ(windows({{"sliding_window", 128}, {"model_type", "mixtral"}}), (Windows{0, 0}));
  for (const json& none :
       {json{{"sliding_window", 64}}, json{{"sliding_window", 64}, {"use_sliding_window", false}},
        json{{"use_sliding_window", true}}, asked, with(asked, {{"max_window_layers", 2}}),
        with(asked, {{"layer_types", {"full_attention", "full_attention"}}}),
        json{{"sliding_window", 0}, {"model_type", "mixtral"}}}) {
    EXPECT_EQ(windows(none), Windows()) << none;
  }
  // Each family in its own way.
  for (const auto& [type, slides] : std::map<std::string, Windows>{{"mistral", {64, 64}},
                                                                   {"qwen2", {0, 64}},
                                                                   {"qwen2_moe", {64, 0}},
                                                                   {"qwen3_moe", {64, 64}},
                                                                   {"llama", {}},
                                                                   {"minimax_m2", {}}}) {
    EXPECT_EQ(windows(with(asked, {{"model_type", type}, {"max_window_layers", 1}})), slides)
        << type;
  }
  EXPECT_EQ(windows(with(asked, {{"model_type", "smollm3"}, {"no_rope_layer_interval", 2}})),
            (Windows{0, 64}));
  // Mistral's window where none is said, and where none is wanted.
  const json mistral = {{"model_type", "mistral"}, {"max_position_embeddings", 8192}};
  EXPECT_EQ(windows(mistral), (Windows{4096, 4096}));
  const auto kind = ErrorKind::kBadFile;
  expect_error(patched({{"layer_types", {"sliding_attention"}}}), kind,
               {"'layer_types'", "one type for each of 2 layers, found 1"});
  expect_error(
      patched({{"sliding_window", 0}, {"layer_types", {"full_attention", "sliding_attention"}}}),
      kind, {"'sliding_window'", "1 or more positions"});
  expect_error(patched({{"sliding_window", -4}}), kind, {"'sliding_window'"});
}

/// Returns how the experts of a config's graph are gated.
kernels::Gating gating_of(const ModelConfig& config) {
  for (const ops::OpNode& node :
       model::find_architecture(config.model_type, "config.json").build(config).nodes) {
    if (const auto* experts = node.find<ops::ExpertsParameters>()) return experts->gating;
  }
  return {};
}

TEST(Config, KnowsGptOssConstants) {
  json config = {{"model_type", "gpt_oss"}, {"sliding_window", 16}};
  ModelConfig parsed = parse(patched(config));
  EXPECT_EQ(parsed.windows, (std::vector<int64_t>{16, 0}));
  EXPECT_EQ(gating_of(parsed).limit, 7.0F);
  EXPECT_EQ(gating_of(parsed).alpha, 1.702F);
  config["swiglu_limit"] = 0.5;
  EXPECT_EQ(gating_of(parse(patched(config))).limit, 0.5F);
  config["swiglu_limit"] = -1;
  expect_error(patched(config), ErrorKind::kBadFile, {"'swiglu_limit'"});
}

TEST(Config, RefusesBrokenJson) {
  const auto message = [](const std::string& text) {
    const Error error = error_of([&] { parse_model_config(text, "config.json"); });
    EXPECT_EQ(error.kind(), ErrorKind::kBadFile);
    EXPECT_EQ(std::string_view(error.what()).find('\n'), std::string_view::npos);
    return std::string(error.what());
  };
  EXPECT_NE(message("{\"a\":\n1").find("invalid JSON at byte 7 of 7"), std::string::npos);
  EXPECT_NE(message("").find("invalid JSON"), std::string::npos);
  EXPECT_NE(message("[1]").find("a list at the top"), std::string::npos);
  EXPECT_NE(message(R"({"a": 1, "a": 2})").find("'a' stands twice"), std::string::npos);
  EXPECT_NE(message("{\"a\":" + std::string(100000, '[')).find("nested deeper"), std::string::npos);
  EXPECT_NE(message("{\"a\": 1e999}").find("out of range"), std::string::npos);
  EXPECT_NE(message("{\"a\": \"\xff\"}").find("invalid JSON"), std::string::npos);
}

TEST(Config, LongListsTakeNoTimeToSpeakOf) {
  std::string objects;
  for (int i = 0; i < 400'000; ++i) objects += i == 0 ? "{}" : ",{}";
  std::string config = testing::small_config();
  config.insert(config.rfind('}'), ", \"vendor_list\": [" + objects + "]");
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_model_config(config, "config.json").hidden_size, 64);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(8));
}

}  // namespace
}  // namespace vitrine
