// SPDX-License-Identifier: Apache-2.0
// Qwen2 and 2.5, dense: biases on q, k and v.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_qwen2(const ModelConfig& config) {
  DecoderTraits traits;
  traits.qkv_bias = config.qkv_bias.value_or(true);
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"qwen2", build_qwen2}));

}  // namespace
}  // namespace vitrine::model
