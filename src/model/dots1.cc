// SPDX-License-Identifier: Apache-2.0
// dots.llm1 (rednote 2025): DeepSeek-V3's routing in a decoder with norms of query and key, windows
// from some layer on.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_dots1(const ModelConfig& config) {
  DecoderTraits traits;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  traits.query_key_norm = true;
  set_deepseek_routing(config, traits);
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"dots1", build_dots1}));

}  // namespace
}  // namespace vitrine::model
