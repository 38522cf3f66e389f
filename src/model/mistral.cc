// SPDX-License-Identifier: Apache-2.0
// Mistral 7B (Jiang et al. 2023) and its successors, dense: windows where the config has one.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_mistral(const ModelConfig& config) {
  DecoderTraits traits;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  return build_decoder(config, traits);
}

bool mistral_slides(const checkpoint::Fields& fields, const ModelConfig& /*config*/,
                    int64_t /*layer*/) {
  return checkpoint::has_window(fields);
}

void read_mistral(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_decoder(fields, config, mistral_slides);
}

constexpr const char* kMistralDefaults =
    R"({"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "sliding_window": 4096, "rope_theta":
        10000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{.family = {.model_types = {"mistral"},
                                                       .defaults = kMistralDefaults,
                                                       .read_config = read_mistral,
                                                       .wrappers = {{"mistral3", true}}},
                                            .build = build_mistral}));

}  // namespace
}  // namespace vitrine::model
