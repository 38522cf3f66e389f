// SPDX-License-Identifier: Apache-2.0
#include "family_defaults.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string>
#include <string_view>

namespace vitrine::checkpoint {
namespace {

/// Defaults of transformers 5.23, of keys that are read here. tests/engine/absent_keys.py finds
/// what comes of each that is left out.
struct Family {
  std::string_view model_type;
  const char* defaults;
};
constexpr Family kFamilies[] = {
    {"deepseek_v2",
     R"({"vocab_size": 102400, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 11008, "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false,
        "first_k_dense_replace": 0, "kv_lora_rank": 512, "q_lora_rank": 1536, "n_routed_experts":
        64, "n_shared_experts": 2, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "routed_scaling_factor": 1.0, "topk_method": "greedy", "norm_topk_prob": false,
        "v_head_dim": 128, "moe_intermediate_size": 1407, "rope_theta": 10000.0})"},
    {"deepseek_v3",
     R"({"vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads":
        128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_key_value_heads": 128,
        "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8,
        "first_k_dense_replace": 3, "norm_topk_prob": true, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "rope_interleave": true,
        "attention_bias": false, "rope_theta": 10000.0})"},
    {"dots1",
     R"({"vocab_size": 152064, "hidden_size": 4608, "num_hidden_layers": 62, "num_attention_heads":
        32, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_key_value_heads": 32,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "norm_topk_prob": false,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "attention_bias": false, "routed_scaling_factor": 1.0, "sliding_window": 4096,
        "max_window_layers": 62, "rope_theta": 10000.0})"},
    {"ernie4_5_moe",
     R"({"vocab_size": 103424, "hidden_size": 2560, "num_hidden_layers": 28, "num_attention_heads":
        20, "intermediate_size": 12288, "num_key_value_heads": 4, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": true, "use_bias": false,
        "moe_intermediate_size": 1536, "moe_k": 6, "moe_num_experts": 64, "moe_num_shared_experts":
        2, "moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 1,
        "rope_theta": 500000.0})"},
    {"flex_olmo",
     R"({"vocab_size": 100352, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 11008, "max_position_embeddings": 4096, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "num_experts_per_tok": 5,
        "num_experts": 7, "norm_topk_prob": false, "rope_theta": 500000.0})"},
    {"gemma4_text",
     R"({"vocab_size": 262144, "hidden_size": 2304, "num_hidden_layers": 30, "num_attention_heads":
        8, "intermediate_size": 9216, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-06, "tie_word_embeddings": true,
        "attention_bias": false, "sliding_window": 512, "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256, "attention_k_eq_v": false, "num_kv_shared_layers": 0,
        "enable_moe_block": false, "use_double_wide_mlp": false})"},
    {"glm4_moe",
     R"({"vocab_size": 151552, "hidden_size": 4096, "num_hidden_layers": 46, "num_attention_heads":
        96, "intermediate_size": 10944, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "attention_bias": false,
        "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1,
        "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1, "norm_topk_prob": true, "use_qk_norm": false, "rope_theta":
        10000.0, "partial_rotary_factor": 0.5})"},
    {"glm4_moe_lite",
     R"({"first_k_dense_replace": 1, "vocab_size": 154880, "hidden_size": 2048, "num_hidden_layers": 47, "num_attention_heads":
        20, "intermediate_size": 10240, "moe_intermediate_size": 1536, "num_key_value_heads": 20,
        "n_shared_experts": 1, "n_routed_experts": 64, "routed_scaling_factor": 1.8, "kv_lora_rank":
        512, "q_lora_rank": 768, "qk_rope_head_dim": 64, "v_head_dim": 256, "qk_nope_head_dim": 192,
        "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4, "norm_topk_prob": true,
        "max_position_embeddings": 202752, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
        "rope_interleave": true, "attention_bias": false, "rope_theta": 10000.0})"},
    {"gpt_oss",
     R"({"vocab_size": 201088, "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads":
        64, "num_local_experts": 128, "intermediate_size": 2880, "head_dim": 64,
        "num_key_value_heads": 8, "sliding_window": 128, "tie_word_embeddings": false,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "num_experts_per_tok": 4,
        "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": true, "rope_theta": 150000.0,
        "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow":
        1.0, "truncate": false, "original_max_position_embeddings": 4096}})"},
    {"granitemoe",
     R"({"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 11008, "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "embedding_multiplier": 1.0,
        "logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0,
        "num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 10000.0})"},
    {"lfm2_moe",
     R"({"vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 7168, "moe_intermediate_size": 1792, "tie_word_embeddings": true,
        "max_position_embeddings": 128000, "norm_eps": 1e-05, "num_key_value_heads": 8, "conv_bias":
        false, "conv_L_cache": 3, "num_dense_layers": 2, "num_experts_per_tok": 4, "num_experts":
        32, "use_expert_bias": true, "routed_scaling_factor": 1.0, "norm_topk_prob": true,
        "rope_theta": 1000000.0})"},
    {"llama",
     R"({"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 11008, "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false, "rope_theta":
        10000.0})"},
    {"minimax_m2",
     R"({"vocab_size": 200064, "hidden_size": 3072, "num_hidden_layers": 62, "num_attention_heads":
        48, "intermediate_size": 1536, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 196608, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "num_experts_per_tok": 8, "num_local_experts": 256, "rope_theta": 5000000.0})"},
    {"mistral",
     R"({"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "sliding_window": 4096, "rope_theta":
        10000.0})"},
    {"mixtral",
     R"({"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "num_experts_per_tok": 2,
        "num_local_experts": 8, "rope_theta": 1000000.0})"},
    {"olmoe",
     R"({"vocab_size": 50304, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads":
        16, "intermediate_size": 2048, "max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
        "tie_word_embeddings": false, "attention_bias": false, "num_experts_per_tok": 8,
        "num_experts": 64, "norm_topk_prob": false, "rope_theta": 10000.0})"},
    {"qwen2",
     R"({"vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "use_sliding_window": false,
        "sliding_window": 4096, "max_window_layers": 28, "rope_theta": 10000.0})"},
    {"qwen2_moe",
     R"({"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads":
        16, "intermediate_size": 5632, "num_key_value_heads": 16, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "use_sliding_window": false,
        "sliding_window": 4096, "max_window_layers": 28, "decoder_sparse_step": 1,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4, "num_experts": 60, "norm_topk_prob": false, "qkv_bias": true,
        "rope_theta": 10000.0})"},
    {"qwen3",
     R"({"vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 22016, "num_key_value_heads": 32, "head_dim": 128,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "attention_bias": false, "use_sliding_window": false, "sliding_window": 4096,
        "max_window_layers": 28, "rope_theta": 10000.0})"},
    {"qwen3_5_text",
     R"({"vocab_size": 248320, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        16, "intermediate_size": 12288, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false, "head_dim":
        256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25})"},
    {"qwen3_5_moe_text",
     R"({"vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads":
        16, "num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "head_dim": 256,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8, "num_experts": 256,
        "rope_theta": 10000.0, "partial_rotary_factor": 0.25})"},
    {"qwen3_moe",
     R"({"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads":
        32, "intermediate_size": 6144, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
        "use_sliding_window": false, "sliding_window": 4096, "decoder_sparse_step": 1,
        "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128,
        "norm_topk_prob": false, "rope_theta": 10000.0})"},
    {"qwen3_next",
     R"({"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads":
        16, "intermediate_size": 5632, "num_key_value_heads": 2, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false, "head_dim":
        256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "decoder_sparse_step": 1,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts_per_tok":
        10, "num_experts": 512, "norm_topk_prob": true, "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25})"},
    {"smollm3",
     R"({"vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads":
        16, "intermediate_size": 11008, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "use_sliding_window": false, "no_rope_layer_interval": 4,
        "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": true, "rope_theta":
        2000000.0})"},
};

/// Text models of the same class under other names.
struct OtherName {
  std::string_view model_type, family;
};
constexpr OtherName kOtherNames[] = {
    {"kimi_k2", "deepseek_v3"},
    {"qwen3_5", "qwen3_5_text"},
    {"qwen3_5_moe", "qwen3_5_moe_text"},
};

constexpr std::array kSizes = {"vocab_size", "hidden_size", "num_hidden_layers",
                               "num_attention_heads"};

/// Spellings of one key, any of which says it.
using Spellings = std::array<std::string_view, 4>;
constexpr Spellings kSpellings[] = {
    {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"},
    {"num_experts_per_tok", "moe_k"},
    {"n_shared_experts", "moe_num_shared_experts"},
    {"tie_word_embeddings", "tie_embedding"},
    {"attention_bias", "use_bias"},
    {"partial_rotary_factor", "rotary_dim"},
};

bool has_any_spelling(const nlohmann::json& fields, std::string_view key) {
  if (fields.contains(key)) return true;
  return std::ranges::any_of(kSpellings, [&](const Spellings& spellings) {
    return std::ranges::find(spellings, key) != spellings.end() &&
           std::ranges::any_of(spellings, [&](std::string_view other) {
             return !other.empty() && fields.contains(other);
           });
  });
}

bool has_object(const nlohmann::json& fields, const char* key) {
  const auto found = fields.find(key);
  return found != fields.end() && found->is_object() && !found->empty();
}

/// Whether what says how heads are rotated stands in an object of its own.
bool is_in_rope_object(const nlohmann::json& fields, std::string_view key) {
  return std::ranges::any_of(std::array{"rope_scaling", "rope_parameters"},
                             [&](const char* object) {
                               return has_object(fields, object) && fields[object].contains(key);
                             });
}

bool is_said(const nlohmann::json& fields, std::string_view key) {
  if (key == "rope_parameters") {  // an object that is null is as one that is absent
    return has_object(fields, "rope_parameters") || has_object(fields, "rope_scaling");
  }
  return has_any_spelling(fields, key) || is_in_rope_object(fields, key);
}

/// Those of the class that reads `fields`; an empty object where none is known.
nlohmann::json defaults_of(const nlohmann::json& fields) {
  const auto type = fields.find("model_type");
  if (type == fields.end() || !type->is_string()) return nlohmann::json::object();
  std::string_view name = type->get_ref<const std::string&>();
  const auto* const other = std::ranges::find(kOtherNames, name, &OtherName::model_type);
  if (other != std::end(kOtherNames)) name = other->family;
  const auto* const family = std::ranges::find(kFamilies, name, &Family::model_type);
  if (family == std::end(kFamilies)) return nlohmann::json::object();
  return nlohmann::json::parse(family->defaults);
}

}  // namespace

std::vector<std::string> absent_keys(const nlohmann::json& fields) {
  std::vector<std::string> keys;
  const nlohmann::json defaults = defaults_of(fields);
  for (const auto& entry : defaults.items()) {
    if (!is_said(fields, entry.key())) keys.push_back(entry.key());
  }
  return keys;
}

void add_family_defaults(nlohmann::json& fields, bool is_wrapped) {
  const nlohmann::json defaults = defaults_of(fields);
  for (const std::string& key : absent_keys(fields)) {
    const bool is_size = std::ranges::find(kSizes, key) != kSizes.end();
    if (is_wrapped || !is_size) fields[key] = defaults[key];
  }
}

}  // namespace vitrine::checkpoint
