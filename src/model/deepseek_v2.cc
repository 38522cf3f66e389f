// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V2 (2024): latent attention; scores by softmax, groups by their best expert.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_deepseek_v2(const ModelConfig& config) {
  DecoderTraits traits;
  traits.output_bias = config.attention_bias;
  traits.group_score_is_best = true;
  traits.shared_block = "mlp.shared_experts";
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"deepseek_v2", build_deepseek_v2}));

}  // namespace
}  // namespace vitrine::model
