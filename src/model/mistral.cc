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

VITRINE_REGISTER_ARCHITECTURE((Architecture{"mistral", build_mistral}));

}  // namespace
}  // namespace vitrine::model
