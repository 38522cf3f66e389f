// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V3 (2024) and its like, Kimi K2 (2025): latent attention, routing by corrected scores.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_deepseek_v3(const ModelConfig& config) {
  DecoderTraits traits;
  traits.output_bias = config.attention_bias;
  set_deepseek_routing(config, traits);
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"deepseek_v3", build_deepseek_v3}));
VITRINE_REGISTER_ARCHITECTURE((Architecture{"kimi_k2", build_deepseek_v3}));

}  // namespace
}  // namespace vitrine::model
