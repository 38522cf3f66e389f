// SPDX-License-Identifier: Apache-2.0
// Mixtral (Jiang et al. 2024): w1 is the gate, w3 the up and w2 the down projection.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_mixtral(const ModelConfig& config) {
  DecoderTraits traits;
  traits.normalize_top_k = true;
  set_mixtral_names(traits);
  return build_decoder(config, traits);
}

bool mixtral_slides(const checkpoint::Fields& fields, const ModelConfig& /*config*/,
                    int64_t /*layer*/) {
  return checkpoint::has_window(fields);
}

void read_mixtral(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_decoder(fields, config, mixtral_slides);
  config.norm_topk_prob = true;  // it has no such field
}

constexpr const char* kMixtralDefaults =
    R"({"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "tie_word_embeddings": false, "num_experts_per_tok": 2,
        "num_local_experts": 8, "rope_theta": 1000000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"mixtral"},
               .defaults = kMixtralDefaults,
               .read_config = read_mixtral,
               .gguf_forms = {{.name = "llama",
                               .has_experts = true,
                               .class_name = "MixtralForCausalLM",
                               .interleaved_rope = true,
                               .normalizes_top_k = true,
                               .has_one_width = true,
                               .has_local_experts = true,
                               .block = "block_sparse_moe",
                               .router = "block_sparse_moe.gate",
                               .gate = "w1",
                               .up = "w3",
                               .down = "w2"}}},
    .build = build_mixtral}));

}  // namespace
}  // namespace vitrine::model
