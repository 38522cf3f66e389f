// SPDX-License-Identifier: Apache-2.0
// SmolLM3 (Hugging Face 2025): every fourth layer does not rotate.
#include <string>
#include <vector>

#include "checkpoint/config_limits.h"
#include "checkpoint/rope_config.h"
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_smollm3(const ModelConfig& config) {
  DecoderTraits traits;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  return build_decoder(config, traits);
}

/// Reads which layers' heads are not rotated.
void read_unrotated_layers(const checkpoint::Fields& fields, ModelConfig& config) {
  const std::vector<int64_t> rotated =
      fields.integers("no_rope_layers", 0, 1, checkpoint::kMaxLayers);
  if (!rotated.empty() && std::ssize(rotated) != config.num_layers) {
    fields.bad("no_rope_layers", "a number for each of " + std::to_string(config.num_layers) +
                                     " layers, found " + std::to_string(rotated.size()));
  }
  const int64_t interval =
      fields.integer("no_rope_layer_interval", 1, checkpoint::kMaxLayers).value_or(4);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    config.rotates.push_back(rotated.empty() ? (layer + 1) % interval != 0
                                             : rotated[static_cast<size_t>(layer)] == 1);
  }
}

bool smollm3_slides(const checkpoint::Fields& fields, const ModelConfig& config, int64_t layer) {
  return checkpoint::asks_for_window(fields) && !config.rotates[static_cast<size_t>(layer)];
}

void read_smollm3(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_heads(fields, config);
  checkpoint::read_rope(fields, config);
  read_unrotated_layers(fields, config);
  checkpoint::read_windows(fields, config, smollm3_slides);
  checkpoint::read_feed_forward(fields, config);
}

constexpr const char* kSmolLm3Defaults =
    R"({"vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads":
        16, "intermediate_size": 11008, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "use_sliding_window": false, "no_rope_layer_interval": 4,
        "attention_bias": false, "mlp_bias": false, "tie_word_embeddings": true, "rope_theta":
        2000000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"smollm3"},
               .defaults = kSmolLm3Defaults,
               .read_config = read_smollm3,
               .gguf_forms = {{.name = "smollm3",
                               .class_name = "SmolLM3ForCausalLM",
                               .interleaved_rope = true,
                               .has_output_bias = true}}},
    .build = build_smollm3}));

}  // namespace
}  // namespace vitrine::model
