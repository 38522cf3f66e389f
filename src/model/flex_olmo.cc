// SPDX-License-Identifier: Apache-2.0
// FlexOlmo (Ai2 2025): experts that were trained apart; what a block gives is normed before it is
// added, and query and key are normed over their whole rows.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_flex_olmo(const ModelConfig& config) {
  DecoderTraits traits;
  traits.norms_outputs = true;
  traits.query_key_norm = traits.norm_whole_row = true;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  traits.normalize_top_k = config.norm_topk_prob.value_or(false);
  return build_decoder(config, traits);
}

constexpr const char* kFlexOlmoDefaults =
    R"({"vocab_size": 100352, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 11008, "max_position_embeddings": 4096, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "num_experts_per_tok": 5,
        "num_experts": 7, "norm_topk_prob": false, "rope_theta": 500000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"flex_olmo"}, .defaults = kFlexOlmoDefaults},
    .build = build_flex_olmo}));

}  // namespace
}  // namespace vitrine::model
