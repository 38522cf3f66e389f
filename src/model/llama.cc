// SPDX-License-Identifier: Apache-2.0
// Llama 2 and 3 (Touvron et al. 2023): dense.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_llama(const ModelConfig& config) {
  DecoderTraits traits;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  return build_decoder(config, traits);
}

constexpr const char* kLlamaDefaults =
    R"({"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 11008, "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false, "rope_theta":
        10000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"llama"},
               .defaults = kLlamaDefaults,
               .gguf_forms = {{.name = "llama",
                               .class_name = "LlamaForCausalLM",
                               .interleaved_rope = true,
                               .has_output_bias = true}}},
    .build = build_llama}));

}  // namespace
}  // namespace vitrine::model
