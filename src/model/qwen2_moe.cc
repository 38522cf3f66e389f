// SPDX-License-Identifier: Apache-2.0
// Qwen2 mixture of experts: biases on q, k and v, and a shared expert behind a sigmoid gate.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_qwen2_moe(const ModelConfig& config) {
  DecoderTraits traits;
  traits.qkv_bias = config.qkv_bias.value_or(true);
  traits.normalize_top_k = config.norm_topk_prob.value_or(false);
  traits.shared_block = "mlp.shared_expert";
  traits.shared_gate = "mlp.shared_expert_gate";
  return build_decoder(config, traits);
}

bool qwen2_moe_slides(const checkpoint::Fields& fields, const ModelConfig& /*config*/,
                      int64_t layer) {
  return checkpoint::asks_for_window(fields) && layer % 2 == 0 &&
         layer < checkpoint::max_window_layers(fields);
}

void read_qwen2_moe(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_decoder(fields, config, qwen2_moe_slides);
}

constexpr const char* kQwen2MoeDefaults =
    R"({"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads":
        16, "intermediate_size": 5632, "num_key_value_heads": 16, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "use_sliding_window": false,
        "sliding_window": 4096, "max_window_layers": 28, "decoder_sparse_step": 1,
        "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "num_experts_per_tok": 4, "num_experts": 60, "norm_topk_prob": false, "qkv_bias": true,
        "rope_theta": 10000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"qwen2_moe"},
               .defaults = kQwen2MoeDefaults,
               .read_config = read_qwen2_moe,
               .gguf_forms = {{.name = "qwen2moe",
                               .has_experts = true,
                               .class_name = "Qwen2MoeForCausalLM",
                               .input_bias = "qkv_bias",
                               .shared_block = "mlp.shared_expert"}}},
    .build = build_qwen2_moe}));

}  // namespace
}  // namespace vitrine::model
