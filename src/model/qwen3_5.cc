// SPDX-License-Identifier: Apache-2.0
// Qwen3.5, dense and with experts: Qwen3-Next's layers, whose linear projections are tensors of
// their own. Of a model with vision, the text.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_qwen3_5(const ModelConfig& config) {
  DecoderTraits traits;
  set_qwen3_next_layers(config, traits);
  traits.tiles_linear_heads = config.linear_layout == LinearLayout::kConverted &&
                              config.linear_value_heads > config.linear_key_heads;
  traits.normalize_top_k = config.norm_topk_prob.value_or(true);
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"qwen3_5", build_qwen3_5}));
VITRINE_REGISTER_ARCHITECTURE((Architecture{"qwen3_5_text", build_qwen3_5}));
VITRINE_REGISTER_ARCHITECTURE((Architecture{"qwen3_5_moe", build_qwen3_5}));
VITRINE_REGISTER_ARCHITECTURE((Architecture{"qwen3_5_moe_text", build_qwen3_5}));

}  // namespace
}  // namespace vitrine::model
