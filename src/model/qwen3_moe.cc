// SPDX-License-Identifier: Apache-2.0
// Qwen3 mixture of experts: Qwen3's attention; dense layers may stand between sparse ones.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_qwen3_moe(const ModelConfig& config) {
  DecoderTraits traits;
  traits.query_key_norm = true;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  traits.normalize_top_k = config.norm_topk_prob.value_or(false);
  return build_decoder(config, traits);
}

bool qwen3_moe_slides(const checkpoint::Fields& fields, const ModelConfig& /*config*/,
                      int64_t /*layer*/) {
  return checkpoint::asks_for_window(fields);
}

void read_qwen3_moe(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_decoder(fields, config, qwen3_moe_slides);
}

constexpr const char* kQwen3MoeDefaults =
    R"({"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads":
        32, "intermediate_size": 6144, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false,
        "use_sliding_window": false, "sliding_window": 4096, "decoder_sparse_step": 1,
        "moe_intermediate_size": 768, "num_experts_per_tok": 8, "num_experts": 128,
        "norm_topk_prob": false, "rope_theta": 10000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"qwen3_moe"},
               .defaults = kQwen3MoeDefaults,
               .read_config = read_qwen3_moe,
               .gguf_forms = {{.name = "qwen3moe",
                               .has_experts = true,
                               .class_name = "Qwen3MoeForCausalLM",
                               .normalizes_top_k = true,
                               .has_head_norms = true,
                               .has_output_bias = true}}},
    .build = build_qwen3_moe}));

}  // namespace
}  // namespace vitrine::model
