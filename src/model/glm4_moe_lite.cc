// SPDX-License-Identifier: Apache-2.0
// GLM-4.7-Flash (Zhipu 2026): DeepSeek-V3's latent attention and routing.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_glm4_moe_lite(const ModelConfig& config) {
  DecoderTraits traits;
  traits.output_bias = config.attention_bias;
  set_deepseek_routing(config, traits);
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"glm4_moe_lite", build_glm4_moe_lite}));

}  // namespace
}  // namespace vitrine::model
