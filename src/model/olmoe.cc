// SPDX-License-Identifier: Apache-2.0
// OLMoE (Muennighoff et al. 2024): query and key are normed over their whole rows.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_olmoe(const ModelConfig& config) {
  DecoderTraits traits;
  traits.query_key_norm = traits.norm_whole_row = true;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  traits.normalize_top_k = config.norm_topk_prob.value_or(false);
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"olmoe", build_olmoe}));

}  // namespace
}  // namespace vitrine::model
