// SPDX-License-Identifier: Apache-2.0
// GLM-4.5, 4.6 and 4.7 (Zhipu 2025): DeepSeek-V3's routing, half of each head is rotated.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_glm4_moe(const ModelConfig& config) {
  DecoderTraits traits;
  traits.qkv_bias = config.attention_bias;
  traits.query_key_norm = config.query_key_norm.value_or(false);
  set_deepseek_routing(config, traits);
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"glm4_moe", build_glm4_moe}));

}  // namespace
}  // namespace vitrine::model
