// SPDX-License-Identifier: Apache-2.0
// Granite 3 mixture of experts: multipliers on embedding, attention, residual and logits, and a
// softmax over the chosen router logits alone.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_granitemoe(const ModelConfig& config) {
  DecoderTraits traits;
  traits.attention_scale = 1.0;
  traits.softmax_after_top_k = true;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  traits.block = "block_sparse_moe";
  traits.router = "block_sparse_moe.router.layer";
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"granitemoe", build_granitemoe}));

}  // namespace
}  // namespace vitrine::model
