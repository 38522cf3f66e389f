// SPDX-License-Identifier: Apache-2.0
// GLM-4.5, 4.6 and 4.7 (Zhipu 2025): DeepSeek-V3's routing, half of each head is rotated.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_glm4_moe(const ModelConfig& config) {
  DecoderTraits traits;
  traits.qkv_bias = config.attention_bias;
  traits.query_key_norm = config.query_key_norm.value_or(false);
  set_deepseek_routing(config, traits);
  return build_decoder(config, traits);
}

void read_glm4_moe(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_decoder(fields, config, /*slides=*/nullptr, /*rotates_part=*/true);
}

void write_glm4_moe(const checkpoint::GgufSource& source, checkpoint::OrderedJson& config) {
  checkpoint::write_decoder_fields(source, config);
  config["use_qk_norm"] = source.tensor("model.layers.0.self_attn.q_norm.weight") != nullptr;
}

constexpr const char* kGlm4MoeDefaults =
    R"({"vocab_size": 151552, "hidden_size": 4096, "num_hidden_layers": 46, "num_attention_heads":
        96, "intermediate_size": 10944, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "attention_bias": false,
        "moe_intermediate_size": 1408, "num_experts_per_tok": 8, "n_shared_experts": 1,
        "n_routed_experts": 128, "routed_scaling_factor": 1.0, "n_group": 1, "topk_group": 1,
        "first_k_dense_replace": 1, "norm_topk_prob": true, "use_qk_norm": false, "rope_theta":
        10000.0, "partial_rotary_factor": 0.5})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"glm4_moe"},
               .defaults = kGlm4MoeDefaults,
               .read_config = read_glm4_moe,
               .gguf_forms = {{.name = "glm4moe",
                               .has_experts = true,
                               .class_name = "Glm4MoeForCausalLM",
                               .normalizes_top_k = true,
                               .has_head_norms = true,
                               .input_bias = "attention_bias",
                               .has_post_norm = true,
                               .rotates_part = true,
                               .has_sigmoid = true,
                               .correction = "mlp.gate.e_score_correction_bias",
                               .shared_block = "mlp.shared_experts",
                               .write_config = write_glm4_moe}}},
    .build = build_glm4_moe,
    .drafts = DraftLayers::kDeepSeek}));

}  // namespace
}  // namespace vitrine::model
