// SPDX-License-Identifier: Apache-2.0
// Qwen2 and 2.5, dense: biases on q, k and v.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_qwen2(const ModelConfig& config) {
  DecoderTraits traits;
  traits.qkv_bias = config.qkv_bias.value_or(true);
  return build_decoder(config, traits);
}

bool qwen2_slides(const checkpoint::Fields& fields, const ModelConfig& /*config*/, int64_t layer) {
  return checkpoint::asks_for_window(fields) && layer >= checkpoint::max_window_layers(fields);
}

void read_qwen2(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_decoder(fields, config, qwen2_slides);
}

constexpr const char* kQwen2Defaults =
    R"({"vocab_size": 151936, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 22016, "num_key_value_heads": 32, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "use_sliding_window": false,
        "sliding_window": 4096, "max_window_layers": 28, "rope_theta": 10000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"qwen2"},
               .defaults = kQwen2Defaults,
               .read_config = read_qwen2,
               .gguf_forms =
                   {{.name = "qwen2", .class_name = "Qwen2ForCausalLM", .input_bias = "qkv_bias"}}},
    .build = build_qwen2}));

}  // namespace
}  // namespace vitrine::model
