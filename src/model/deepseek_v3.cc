// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V3 (2024) and its like, Kimi K2 (2025): latent attention, routing by corrected scores.
#include <array>

#include "checkpoint/latent_config.h"
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_deepseek_v3(const ModelConfig& config) {
  DecoderTraits traits;
  traits.output_bias = config.attention_bias;
  set_deepseek_routing(config, traits);
  return build_decoder(config, traits);
}

constexpr std::array<std::string_view, 1> kDeepSeekV3Keys = {"rope.scaling.yarn_log_multiplier"};

constexpr const char* kDeepSeekV3Defaults =
    R"({"vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads":
        128, "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_key_value_heads": 128,
        "n_shared_experts": 1, "n_routed_experts": 256, "routed_scaling_factor": 2.5,
        "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "qk_nope_head_dim": 128, "n_group": 8, "topk_group": 4, "num_experts_per_tok": 8,
        "first_k_dense_replace": 3, "norm_topk_prob": true, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "rope_interleave": true,
        "attention_bias": false, "rope_theta": 10000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"deepseek_v3", "kimi_k2"},
               .defaults = kDeepSeekV3Defaults,
               .read_config = checkpoint::read_latent_config,
               .wrappers = {{"kimi_k25", true}},
               .gguf_forms = {{.name = "deepseek2",
                               .has_experts = true,
                               .class_name = "DeepseekV3ForCausalLM",
                               .has_latents = true,
                               .has_sigmoid = true,
                               .correction = "mlp.gate.e_score_correction_bias",
                               .shared_block = "mlp.shared_experts",
                               .own_keys = kDeepSeekV3Keys}}},
    .build = build_deepseek_v3,
    .drafts = DraftLayers::kDeepSeek}));

}  // namespace
}  // namespace vitrine::model
