// SPDX-License-Identifier: Apache-2.0
// Qwen2 mixture of experts: biases on q, k and v, and a shared expert behind a sigmoid gate.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_qwen2_moe(const ModelConfig& config) {
  DecoderTraits traits;
  traits.qkv_bias = config.qkv_bias.value_or(true);
  traits.normalize_top_k = config.norm_topk_prob.value_or(false);
  traits.shared_block = "mlp.shared_expert";
  traits.shared_gate = "mlp.shared_expert_gate";
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"qwen2_moe", build_qwen2_moe}));

}  // namespace
}  // namespace vitrine::model
