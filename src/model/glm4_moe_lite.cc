// SPDX-License-Identifier: Apache-2.0
// GLM-4.7-Flash (Zhipu 2026): DeepSeek-V3's latent attention and routing.
#include "checkpoint/latent_config.h"
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_glm4_moe_lite(const ModelConfig& config) {
  DecoderTraits traits;
  traits.output_bias = config.attention_bias;
  set_deepseek_routing(config, traits);
  return build_decoder(config, traits);
}

constexpr const char* kGlm4MoeLiteDefaults =
    R"({"first_k_dense_replace": 1, "vocab_size": 154880, "hidden_size": 2048, "num_hidden_layers": 47, "num_attention_heads":
        20, "intermediate_size": 10240, "moe_intermediate_size": 1536, "num_key_value_heads": 20,
        "n_shared_experts": 1, "n_routed_experts": 64, "routed_scaling_factor": 1.8, "kv_lora_rank":
        512, "q_lora_rank": 768, "qk_rope_head_dim": 64, "v_head_dim": 256, "qk_nope_head_dim": 192,
        "n_group": 1, "topk_group": 1, "num_experts_per_tok": 4, "norm_topk_prob": true,
        "max_position_embeddings": 202752, "rms_norm_eps": 1e-05, "tie_word_embeddings": false,
        "rope_interleave": true, "attention_bias": false, "rope_theta": 10000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"glm4_moe_lite"},
               .defaults = kGlm4MoeLiteDefaults,
               .read_config = checkpoint::read_latent_config},
    .build = build_glm4_moe_lite,
    .drafts = DraftLayers::kDeepSeek}));

}  // namespace
}  // namespace vitrine::model
