// SPDX-License-Identifier: Apache-2.0
// OLMoE (Muennighoff et al. 2024): query and key are normed over their whole rows.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_olmoe(const ModelConfig& config) {
  DecoderTraits traits;
  traits.query_key_norm = traits.norm_whole_row = true;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  traits.normalize_top_k = config.norm_topk_prob.value_or(false);
  return build_decoder(config, traits);
}

constexpr const char* kOlmoeDefaults =
    R"({"vocab_size": 50304, "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads":
        16, "intermediate_size": 2048, "max_position_embeddings": 4096, "rms_norm_eps": 1e-05,
        "tie_word_embeddings": false, "attention_bias": false, "num_experts_per_tok": 8,
        "num_experts": 64, "norm_topk_prob": false, "rope_theta": 10000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"olmoe"},
               .defaults = kOlmoeDefaults,
               .gguf_forms = {{.name = "olmoe",
                               .has_experts = true,
                               .class_name = "OlmoeForCausalLM",
                               .has_head_norms = true,
                               .has_output_bias = true,
                               .has_one_width = true}}},
    .build = build_olmoe}));

}  // namespace
}  // namespace vitrine::model
