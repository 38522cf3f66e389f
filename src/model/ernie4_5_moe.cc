// SPDX-License-Identifier: Apache-2.0
// ERNIE 4.5 (Baidu 2025): probabilities that are corrected for the choice, neighbours are rotated.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_ernie4_5_moe(const ModelConfig& config) {
  if (config.attention_bias) {
    throw Error(ErrorKind::kUnsupported,
                "config.json: field 'use_bias' is true; expected false: experts of ernie4_5_moe "
                "with biases do not run in this version");
  }
  DecoderTraits traits;
  traits.rotates_neighbours = true;
  traits.correction = "mlp.moe_statics.e_score_correction_bias";
  traits.normalize_top_k = true;
  traits.least_sum = 1e-12;
  traits.shared_block = "mlp.shared_experts";
  return build_decoder(config, traits);
}

constexpr const char* kErnieDefaults =
    R"({"vocab_size": 103424, "hidden_size": 2560, "num_hidden_layers": 28, "num_attention_heads":
        20, "intermediate_size": 12288, "num_key_value_heads": 4, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": true, "use_bias": false,
        "moe_intermediate_size": 1536, "moe_k": 6, "moe_num_experts": 64, "moe_num_shared_experts":
        2, "moe_layer_start_index": 1, "moe_layer_end_index": -1, "moe_layer_interval": 1,
        "rope_theta": 500000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"ernie4_5_moe"},
               .defaults = kErnieDefaults,
               .gguf_forms = {{.name = "ernie4_5-moe",
                               .has_experts = true,
                               .class_name = "Ernie4_5_MoeForCausalLM",
                               .normalizes_top_k = true,
                               .has_output_bias = true,
                               .correction = "mlp.moe_statics.e_score_correction_bias",
                               .shared_block = "mlp.shared_experts"}}},
    .build = build_ernie4_5_moe}));

}  // namespace
}  // namespace vitrine::model
