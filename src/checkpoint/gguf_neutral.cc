// SPDX-License-Identifier: Apache-2.0
// Keys that other engines' loaders read and no architecture here computes: only values that change
// nothing are let through.
#include <map>

#include "family_defaults.h"
#include "gguf_gemma.h"
#include "gguf_model.h"

namespace vitrine::checkpoint {
namespace {

struct NeutralNumber {
  std::string_view name;
  bool is_float;
  double other = 0.0;  // neutral besides 0
};

/// Latent attention has it.
constexpr std::string_view kLogMultiplier = "rope.scaling.yarn_log_multiplier";
/// Gemma 4 has them.
constexpr std::string_view kLogitCap = "final_logit_softcapping";
constexpr std::string_view kSharedLayers = "attention.shared_kv_layers";

constexpr NeutralNumber kNeutralNumbers[] = {
    {"attn_logit_softcapping", true},
    {kLogitCap, true},
    {"router_logit_softcapping", true},
    {"attention.max_alibi_bias", true},
    {"attention.output_scale", true, 1.0},
    {"attention.temperature_scale", true},
    {"attention.temperature_length", false},
    {kLogMultiplier, true},
    {kSharedLayers, false},
};

/// Of architectures whose routers have no scores.
constexpr NeutralNumber kNeutralRouting[] = {{"expert_group_count", false, 1.0},
                                             {"expert_group_used_count", false, 1.0},
                                             {"expert_weights_scale", true, 1.0}};

/// Of all architectures but granitemoe, which has multipliers.
constexpr NeutralNumber kNeutralScales[] = {{"attention.scale", true, 1.0},
                                            {"embedding_scale", true, 1.0},
                                            {"residual_scale", true, 1.0},
                                            {"logit_scale", true, 1.0}};

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
    const bool is_used =
        (architecture.has_latents && number.name == kLogMultiplier) ||
        (is_gemma(architecture) && (number.name == kLogitCap || number.name == kSharedLayers));
    if (!is_used) expect_number(number);
  }
  if (architecture.correction.empty() && !architecture.has_latents) {
    for (const NeutralNumber& number : kNeutralRouting) expect_number(number);
  }
  const bool has_multipliers = architecture.model_type == "granitemoe";
  if (!has_multipliers) {
    for (const NeutralNumber& number : kNeutralScales) expect_number(number);
  }
  const auto expect_flag = [&](std::string_view name, bool neutral) {
    const std::string key = prefix + std::string(name);
    if (metadata.boolean(key).value_or(neutral) != neutral) {
      metadata.unsupported(key, neutral ? "true" : "false");
    }
  };
  for (const NeutralFlag& flag : kNeutralFlags) expect_flag(flag.name, flag.neutral);
  // There it says whether heads are rotated at all.
  if (has_multipliers) expect_flag("rope.scaling.finetuned", true);
  // config.json has no field for it in these two.
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
