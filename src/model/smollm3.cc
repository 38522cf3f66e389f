// SPDX-License-Identifier: Apache-2.0
// SmolLM3 (Hugging Face 2025): every fourth layer does not rotate.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_smollm3(const ModelConfig& config) {
  DecoderTraits traits;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"smollm3", build_smollm3}));

}  // namespace
}  // namespace vitrine::model
