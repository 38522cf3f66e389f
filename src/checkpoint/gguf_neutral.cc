// SPDX-License-Identifier: Apache-2.0
// Keys that other engines' loaders read and no architecture here computes with, but those whose
// GgufArchitecture::own_keys name them: only values that change nothing are let through.
#include <algorithm>
#include <map>

#include "family_defaults.h"
#include "gguf_model.h"

namespace vitrine::checkpoint {
namespace {

struct NeutralNumber {
  std::string_view name;
  bool is_float;
  double other = 0.0;  // neutral besides 0
};

constexpr NeutralNumber kNeutralNumbers[] = {
    {"attn_logit_softcapping", true},
    {"final_logit_softcapping", true},
    {"router_logit_softcapping", true},
    {"attention.max_alibi_bias", true},
    {"attention.output_scale", true, 1.0},
    {"attention.temperature_scale", true},
    {"attention.temperature_length", false},
    {"rope.scaling.yarn_log_multiplier", true},
    {"attention.shared_kv_layers", false},
    {"attention.scale", true, 1.0},
    {"embedding_scale", true, 1.0},
    {"residual_scale", true, 1.0},
    {"logit_scale", true, 1.0},
};

/// Numbers that change nothing where routers have no scores of their own.
constexpr NeutralNumber kNeutralRouting[] = {{"expert_group_count", false, 1.0},
                                             {"expert_group_used_count", false, 1.0},
                                             {"expert_weights_scale", true, 1.0}};

struct NeutralFlag {
  std::string_view name;
  bool neutral;
};

constexpr NeutralFlag kNeutralFlags[] = {
    {"attention.causal", true},
    {"use_parallel_residual", false},
};

}  // namespace

void refuse_other_models(const GgufArchitecture& architecture, const GgufMetadata& metadata) {
  const std::string prefix = std::string(architecture.name) + ".";
  const auto expect_number = [&](const NeutralNumber& number) {
    const std::string key = prefix + std::string(number.name);
    const double found = number.is_float
                             ? metadata.number(key, -1e9, 1e9).value_or(0.0)
                             : static_cast<double>(metadata.integer(key, 0, INT32_MAX).value_or(0));
    if (found != 0.0 && found != number.other) {
      metadata.unsupported(key, number.other == 0.0 ? "0" : "1");
    }
  };
  for (const NeutralNumber& number : kNeutralNumbers) {
    const auto& own = architecture.own_keys;
    if (std::ranges::find(own, number.name) == own.end()) expect_number(number);
  }
  if (architecture.correction.empty() && !architecture.has_latents) {
    for (const NeutralNumber& number : kNeutralRouting) expect_number(number);
  }
  const auto expect_flag = [&](std::string_view name, bool neutral) {
    const std::string key = prefix + std::string(name);
    if (metadata.boolean(key).value_or(neutral) != neutral) {
      metadata.unsupported(key, neutral ? "true" : "false");
    }
  };
  for (const NeutralFlag& flag : kNeutralFlags) expect_flag(flag.name, flag.neutral);
  // The config.json of families with this block has no field for it.
  if (architecture.block == "block_sparse_moe") expect_flag("expert_weights_norm", true);
}

void write_plain_values(nlohmann::ordered_json& config) {
  static const std::map<std::string, nlohmann::ordered_json> kPlain = {
      {"attention_bias", false},
      {"first_k_dense_replace", 0},
      {"moe_layer_start_index", 0},
      {"moe_num_shared_experts", 0},
      {"n_group", 1},
      {"n_shared_experts", 0},
      {"q_lora_rank", nullptr},
      {"rope_parameters", {{"rope_type", "default"}}},
      {"routed_scaling_factor", 1.0},
      {"shared_expert_intermediate_size", 0},
      {"sliding_window", nullptr},
      {"topk_group", 1}};
  for (const std::string& key : absent_keys(nlohmann::json::parse(config.dump()))) {
    const auto plain = kPlain.find(key);
    if (plain != kPlain.end()) config[key] = plain->second;
  }
}

}  // namespace vitrine::checkpoint
