// SPDX-License-Identifier: Apache-2.0
// config.json of every family with each of its fields made another value: it is read, or refused in
// one line with the file, the field and what was expected.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "checkpoint/model_config.h"
#include "folders.h"
#include "tests/support/test_data.h"

namespace vitrine {
namespace {

using nlohmann::json;
using testing::error_of;
using testing::is_one_line_with;

const std::map<std::string, json>& oracle_configs() {
  static const std::map<std::string, json> configs = [] {
    std::map<std::string, json> all;
    const std::filesystem::path folder = testing_support::test_data("oracles");
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (!entry.is_directory()) continue;
      all[entry.path().filename().string()] =
          json::parse(testing::read_bytes((entry.path() / "config.json").string()));
    }
    return all;
  }();
  return configs;
}

ModelConfig parse(const json& config) { return parse_model_config(config.dump(), "config.json"); }

/// Places of all values within a config, "/rope_parameters/factor" among them.
std::vector<std::string> places_of(const json& config) {
  std::vector<std::string> places;
  for (const auto& [key, value] : config.items()) {
    places.push_back("/" + key);
    if (!value.is_object()) continue;
    for (const std::string& inner : places_of(value)) places.push_back("/" + key + inner);
  }
  return places;
}

/// Fields that say how large something is, or how much of it there is: a text is none of them.
bool is_size(const json& config, const std::string& place) {
  // Without experts nobody asks how many.
  if (place.find("experts") != place.npos && !config.value("enable_moe_block", true)) return false;
  for (const char* end : {"hidden_size",
                          "num_hidden_layers",
                          "num_attention_heads",
                          "vocab_size",
                          "max_position_embeddings",
                          "num_experts_per_tok",
                          "moe_k",
                          "num_experts",
                          "n_routed_experts",
                          "num_local_experts",
                          "moe_num_experts",
                          "kv_lora_rank",
                          "qk_nope_head_dim",
                          "qk_rope_head_dim",
                          "v_head_dim",
                          "linear_num_value_heads",
                          "linear_conv_kernel_dim",
                          "conv_L_cache",
                          "n_group",
                          "topk_group",
                          "top_k_experts",
                          "sliding_window",
                          "factor",
                          "rope_theta"}) {
    if (place.ends_with(std::string("/") + end)) return true;
  }
  return false;
}

TEST(ConfigLies, EachIsReadOrRefusedInOneLine) {
  const json lies[] = {nullptr,        -1,   0,     3,          1e300,     INT64_MAX,
                       UINT64_MAX,     "x",  "",    true,       2.5,       json::array(),
                       json::object(), {-1}, {"x"}, {{"a", 1}}, {1, 2, 3}, json(5000, 1)};
  ASSERT_GT(oracle_configs().size(), 20U);
  int refused = 0;
  for (const auto& [name, config] : oracle_configs()) {
    EXPECT_NO_THROW(parse(config)) << name;
    for (const std::string& place : places_of(config)) {
      for (const json& lie : lies) {
        json changed = config;
        changed[json::json_pointer(place)] = lie;
        const Error error = error_of([&] { parse(changed); });
        const bool is_read = error.kind() == ErrorKind::kInternal && *error.what() == '\0';
        SCOPED_TRACE(name + place + " as " + lie.dump().substr(0, 40));
        if (is_read) {
          EXPECT_FALSE(is_size(config, place) && (lie.is_string() || lie.is_array() || lie == -1))
              << "it is read";
          continue;
        }
        ++refused;
        EXPECT_TRUE(error.kind() == ErrorKind::kBadFile || error.kind() == ErrorKind::kUnsupported)
            << error.what();
        EXPECT_TRUE(is_one_line_with(error, {"config.json", "expected"})) << error.what();
        const std::string field = place.substr(place.rfind('/') + 1);
        // Another type may be an architecture that has other fields.
        if (field != "model_type" && (lie.is_string() || lie == -1)) {
          EXPECT_TRUE(is_one_line_with(error, {field})) << error.what();
        }
      }
    }
  }
  EXPECT_GT(refused, 3000);
}

/// A config with a JSON merge patch, in which a list takes the place of a list.
void expect_lie(const std::string& name, const json& patch,
                std::initializer_list<std::string_view> parts) {
  json config = oracle_configs().at(name);
  for (const auto& [key, value] : patch.items()) config[key] = value;
  const Error error = error_of([&] { parse(config); });
  EXPECT_TRUE(error.kind() == ErrorKind::kBadFile || error.kind() == ErrorKind::kUnsupported)
      << name << ": " << error.what();
  EXPECT_TRUE(is_one_line_with(error, parts)) << name << ": " << error.what();
  EXPECT_TRUE(is_one_line_with(error, {"config.json", "expected"})) << error.what();
}

TEST(ConfigLies, OneTypeForEachLayer) {
  int found = 0;
  for (const auto& [name, config] : oracle_configs()) {
    for (const char* field : {"layer_types", "mlp_layer_types", "no_rope_layers"}) {
      if (!config.contains(field) || !config[field].is_array()) continue;
      ++found;
      const std::string layers = std::to_string(config["num_hidden_layers"].get<int>()) + " layers";
      json longer = config[field], shorter = config[field], other = config[field];
      longer.push_back(longer[0]);
      shorter.erase(0);
      expect_lie(name, {{field, longer}}, {field, layers, std::to_string(longer.size())});
      expect_lie(name, {{field, shorter}}, {field, layers, std::to_string(shorter.size())});
      other[0] = other[0].is_string() ? json("odd_attention") : json(2);
      expect_lie(name, {{field, other}}, {field});
      other[0] = json::array();
      expect_lie(name, {{field, other}}, {field});
    }
  }
  EXPECT_GT(found, 6);
}

TEST(ConfigLies, GroupsOfExpertsDivideThem) {
  for (const char* name : {"deepseek_v2", "deepseek_v3", "glm4_moe", "dots1"}) {
    expect_lie(name, {{"n_group", 5}, {"topk_group", 1}}, {"'n_group' is 5", "a divisor of"});
    const json& config = oracle_configs().at(name);
    const int experts = config["n_routed_experts"].get<int>();
    expect_lie(name, {{"n_group", 4}, {"topk_group", 5}}, {"'topk_group' is 5", "1 to 4"});
    expect_lie(name, {{"num_experts_per_tok", experts + 1}}, {"'num_experts_per_tok'"});
    if (std::string_view(name) == "deepseek_v2") continue;
    // As many groups as experts leave none to choose two in each.
    expect_lie(name, {{"n_group", experts}, {"topk_group", experts}}, {"'topk_group'"});
  }
}

TEST(ConfigLies, HeadsWithinLimits) {
  for (const auto& [name, config] : oracle_configs()) {
    expect_lie(name, {{"num_attention_heads", 1 << 20}}, {"'num_attention_heads' is 1048576"});
    expect_lie(name, {{"num_attention_heads", 0}}, {"'num_attention_heads' is 0"});
    const bool is_latent = config.contains("kv_lora_rank");
    expect_lie(name, {{is_latent ? "v_head_dim" : "head_dim", 1 << 21}}, {"head_dim"});
    expect_lie(name, {{"num_key_value_heads", 1 << 20}}, {"'num_key_value_heads' is 1048576"});
    const int heads = config["num_attention_heads"].get<int>();
    expect_lie(name, {{"num_key_value_heads", heads + 1}}, {"num_key_value_heads"});
  }
}

TEST(ConfigLies, WindowsOfNoPositions) {
  for (const char* name : {"gpt_oss", "dots1", "gemma4_text", "gemma4_text_e"}) {
    expect_lie(name, {{"sliding_window", 0}}, {"'sliding_window' is 0", "1 or more"});
    expect_lie(name, {{"sliding_window", -1}}, {"'sliding_window' is -1"});
    expect_lie(name, {{"sliding_window", "wide"}}, {"'sliding_window' is 'wide'"});
  }
}

TEST(ConfigLies, WrappersHaveATextPart) {
  for (const char* type : {"gemma4", "kimi_k25", "llama4", "mistral3", "qwen3_5", "qwen3_5_moe"}) {
    const json bare = {{"model_type", type}, {"vision_config", json::object()}};
    for (const json& text : {json(nullptr), json(7), json("x"), json::array()}) {
      json wrapper = bare;
      wrapper["text_config"] = text;
      const Error error = error_of([&] { parse(wrapper); });
      EXPECT_EQ(error.kind(), ErrorKind::kBadFile) << type;
      EXPECT_TRUE(is_one_line_with(error, {"config.json", "'text_config'", "expected"}))
          << error.what();
    }
    json wrapper = bare;
    wrapper["text_config"] = {{"hidden_size", 0}};  // the rest is the family's
    const Error error = error_of([&] { parse(wrapper); });
    EXPECT_TRUE(is_one_line_with(error, {"config.json: text_config", "expected"})) << error.what();
  }
}

}  // namespace
}  // namespace vitrine
