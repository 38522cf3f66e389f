// SPDX-License-Identifier: Apache-2.0
// Qwen3 mixture of experts: Qwen3's attention; dense layers may stand between sparse ones.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_qwen3_moe(const ModelConfig& config) {
  DecoderTraits traits;
  traits.query_key_norm = true;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  traits.normalize_top_k = config.norm_topk_prob.value_or(false);
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"qwen3_moe", build_qwen3_moe}));

}  // namespace
}  // namespace vitrine::model
