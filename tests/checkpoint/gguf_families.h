// SPDX-License-Identifier: Apache-2.0
// GGUF files of the newer families, with the keys that each of them reads and an embedding.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf_builder.h"

namespace vitrine::testing {

enum class Kind : uint8_t { kInteger, kFloat, kFlag, kText, kLayers, kLayerFlags };

struct Key {
  std::string name;
  Kind kind;
  double value = 0;  ///< of each layer, too
  std::string text = {};
  bool is_required = false;
};

inline constexpr Kind kInteger = Kind::kInteger, kFloat = Kind::kFloat, kFlag = Kind::kFlag;
inline constexpr uint64_t kLayers = 4;

struct Family {
  std::string name;
  std::vector<Key> keys;
  std::vector<float> rope_factors = {};
};

inline std::string value_entry(const std::string& name, const Key& key) {
  const auto number = static_cast<uint32_t>(key.value);
  switch (key.kind) {
    case Kind::kInteger: return gguf_u32(name, number);
    case Kind::kFloat: return gguf_f32(name, static_cast<float>(key.value));
    case Kind::kFlag: return gguf_bool(name, key.value != 0);
    case Kind::kText: return gguf_text(name, key.text);
    case Kind::kLayers: return gguf_array(name, 4, std::vector<uint32_t>(kLayers, number));
    case Kind::kLayerFlags: break;
  }
  return gguf_array<uint8_t>(name, 7, {1, 1, 1, 0});
}

/// What every family has, and experts where there are some.
inline std::vector<Key> with_common(bool has_experts, std::vector<Key> more) {
  std::vector<Key> keys = {{"context_length", kInteger, 128, "", true},
                           {"embedding_length", kInteger, 64, "", true},
                           {"block_count", kInteger, kLayers, "", true},
                           {"feed_forward_length", kInteger, 96},
                           {"attention.head_count", kInteger, 4, "", true},
                           {"attention.head_count_kv", kInteger, 2},
                           {"attention.layer_norm_rms_epsilon", kFloat, 1e-5, "", true},
                           {"attention.key_length", kInteger, 32},
                           {"attention.value_length", kInteger, 32},
                           {"rope.freq_base", kFloat, 1e4},
                           {"rope.dimension_count", kInteger, 32}};
  if (has_experts) {
    keys.insert(keys.end(), {{"expert_count", kInteger, 8, "", true},
                             {"expert_used_count", kInteger, 2, "", true},
                             {"expert_feed_forward_length", kInteger, 32, "", true}});
  }
  for (Key& key : more) {
    std::erase_if(keys, [&](const Key& other) { return other.name == key.name; });
    keys.push_back(std::move(key));
  }
  return keys;
}

inline std::vector<Key> scores() {
  return {{"expert_gating_func", kInteger, 2},      {"expert_weights_scale", kFloat, 2.5},
          {"expert_weights_norm", kFlag, 1},        {"expert_group_count", kInteger, 4},
          {"expert_group_used_count", kInteger, 2}, {"expert_shared_count", kInteger, 1}};
}

inline std::vector<Key> joined(std::vector<Key> one, const std::vector<Key>& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

inline std::vector<Key> without(std::string_view name, std::vector<Key> keys) {
  std::erase_if(keys, [&](const Key& key) { return key.name == name; });
  return keys;
}

inline const std::vector<Family>& families() {
  const std::vector<Key> yarn = {{"rope.scaling.type", Kind::kText, 0, "yarn"},
                                 {"rope.scaling.factor", kFloat, 32},
                                 {"rope.scaling.original_context_length", kInteger, 64},
                                 {"rope.scaling.yarn_beta_fast", kFloat, 32},
                                 {"rope.scaling.yarn_beta_slow", kFloat, 1}};
  const std::vector<Key> states = {
      {"ssm.conv_kernel", kInteger, 3, "", true},  {"ssm.state_size", kInteger, 16, "", true},
      {"ssm.group_count", kInteger, 2, "", true},  {"ssm.time_step_rank", kInteger, 6, "", true},
      {"ssm.inner_size", kInteger, 144, "", true}, {"full_attention_interval", kInteger, 4},
      {"nextn_predict_layers", kInteger, 0},       {"rope.dimension_count", kInteger, 16}};
  const std::vector<Key> latents = {{"attention.key_length", kInteger, 48},
                                    {"attention.value_length", kInteger, 32},
                                    {"attention.key_length_mla", kInteger, 40},
                                    {"attention.value_length_mla", kInteger, 20},
                                    {"attention.kv_lora_rank", kInteger, 32, "", true},
                                    {"attention.q_lora_rank", kInteger, 24},
                                    {"attention.head_count_kv", kInteger, 1},
                                    {"rope.scaling.yarn_log_multiplier", kFloat, 0.1},
                                    {"rope.dimension_count", kInteger, 16, "", true}};
  static const std::vector<Family> all = {
      {"gpt-oss",
       with_common(true, joined(yarn, {{"attention.sliding_window", kInteger, 16, "", true}}))},
      {"deepseek2", with_common(true, joined(joined(scores(), yarn), latents))},
      {"qwen3next",
       with_common(true, joined(states, {{"expert_shared_feed_forward_length", kInteger, 32}}))},
      {"qwen35", with_common(false, states)},
      {"qwen35moe",
       without(
           "full_attention_interval",
           with_common(true, joined(states, {{"expert_shared_feed_forward_length", kInteger, 32},
                                             {"attention.recurrent_layers", Kind::kLayerFlags}})))},
      {"glm4moe", with_common(true, joined(scores(), {{"rope.dimension_count", kInteger, 16},
                                                      {"nextn_predict_layers", kInteger, 1}}))},
      {"dots1", with_common(true, scores())},
      {"minimax-m2", with_common(true, {{"expert_gating_func", kInteger, 2},
                                        {"rope.dimension_count", kInteger, 16}})},
      {"ernie4_5-moe", with_common(true, {{"expert_shared_count", kInteger, 1}})},
      {"smollm3", with_common(false, {})},
      {"lfm2moe", with_common(true, {{"attention.head_count_kv", Kind::kLayers, 2, "", true},
                                     {"attention.key_length", kInteger, 16},
                                     {"attention.value_length", kInteger, 16},
                                     {"rope.dimension_count", kInteger, 16},
                                     {"shortconv.l_cache", kInteger, 3, "", true},
                                     {"expert_gating_func", kInteger, 2}})},
      {"gemma4",
       with_common(true, {{"attention.sliding_window_pattern", Kind::kLayerFlags, 0, "", true},
                          {"attention.sliding_window", kInteger, 16, "", true},
                          {"attention.key_length_swa", kInteger, 16, "", true},
                          {"attention.value_length_swa", kInteger, 16},
                          {"attention.shared_kv_layers", kInteger, 0},
                          {"attention.head_count_kv", Kind::kLayers, 2},
                          {"feed_forward_length", Kind::kLayers, 96, "", true},
                          {"embedding_length_per_layer_input", kInteger, 0},
                          {"rope.dimension_count_swa", kInteger, 16},
                          {"rope.freq_base_swa", kFloat, 1e4},
                          {"final_logit_softcapping", kFloat, 30},
                          {"expert_count", kInteger, 8},
                          {"expert_gating_func", kInteger, 1},
                          {"expert_weights_norm", kFlag, 1}}),
       std::vector<float>(16, 1.0F)}};
  return all;
}

/// A file of a family in which the key `changed` has another entry; with an empty one it is
/// missing.
inline std::string family_file(const Family& family, const std::string& changed = {},
                               const std::string& entry = {}) {
  GgufFile file;
  file.entries = {gguf_text("general.architecture", family.name)};
  for (const Key& key : family.keys) {
    const std::string name = family.name + "." + key.name;
    if (key.name != changed) {
      file.entries.push_back(value_entry(name, key));
    } else if (!entry.empty()) {
      file.entries.push_back(entry);
    }
  }
  file.tensors = {gguf_tensor("token_embd.weight", {64, 4}, 0, 0)};
  file.data_bytes = 1024;
  if (!family.rope_factors.empty()) {
    file.tensors.push_back(
        gguf_tensor("rope_freqs.weight", {family.rope_factors.size()}, 0, file.data_bytes));
    file.data_bytes += family.rope_factors.size() * sizeof(float);
  }
  std::string bytes = file.bytes();
  bytes.resize(bytes.size() - family.rope_factors.size() * sizeof(float));
  for (const float factor : family.rope_factors) bytes += le(factor);
  return bytes;
}

}  // namespace vitrine::testing
