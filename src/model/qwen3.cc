// SPDX-License-Identifier: Apache-2.0
// Qwen3, dense: a norm on every query and key head.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_qwen3(const ModelConfig& config) {
  DecoderTraits traits;
  traits.query_key_norm = true;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"qwen3", build_qwen3}));

}  // namespace
}  // namespace vitrine::model
