// SPDX-License-Identifier: Apache-2.0
// Llama 2 and 3 (Touvron et al. 2023): dense.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_llama(const ModelConfig& config) {
  DecoderTraits traits;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"llama", build_llama}));

}  // namespace
}  // namespace vitrine::model
