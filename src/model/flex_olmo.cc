// SPDX-License-Identifier: Apache-2.0
// FlexOlmo (Ai2 2025): experts that were trained apart; what a block gives is normed before it is
// added, and query and key are normed over their whole rows.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_flex_olmo(const ModelConfig& config) {
  DecoderTraits traits;
  traits.norms_outputs = true;
  traits.query_key_norm = traits.norm_whole_row = true;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  traits.normalize_top_k = config.norm_topk_prob.value_or(false);
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"flex_olmo", build_flex_olmo}));

}  // namespace
}  // namespace vitrine::model
