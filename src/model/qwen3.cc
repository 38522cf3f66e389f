// SPDX-License-Identifier: Apache-2.0
// Qwen3, dense: a norm on every query and key head.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_qwen3(const ModelConfig& config) {
  DecoderTraits traits;
  traits.query_key_norm = true;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  return build_decoder(config, traits);
}

bool qwen3_slides(const checkpoint::Fields& fields, const ModelConfig& /*config*/, int64_t layer) {
  return checkpoint::asks_for_window(fields) && layer >= checkpoint::max_window_layers(fields);
}

void read_qwen3(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_decoder(fields, config, qwen3_slides);
}

constexpr const char* kQwen3Defaults =
    R"({"vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 22016, "num_key_value_heads": 32, "head_dim": 128,
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "attention_bias": false, "use_sliding_window": false, "sliding_window": 4096,
        "max_window_layers": 28, "rope_theta": 10000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"qwen3"},
               .defaults = kQwen3Defaults,
               .read_config = read_qwen3,
               .gguf_forms = {{.name = "qwen3",
                               .class_name = "Qwen3ForCausalLM",
                               .has_head_norms = true,
                               .has_output_bias = true}}},
    .build = build_qwen3}));

}  // namespace
}  // namespace vitrine::model
