// SPDX-License-Identifier: Apache-2.0
// gpt-oss (OpenAI 2025): attention with sinks, every other layer within a window, biases on all
// matrices but the embedding's and the head's, a clamped gating.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_gpt_oss(const ModelConfig& config) {
  DecoderTraits traits;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  traits.sinks = true;
  traits.softmax_after_top_k = true;
  traits.router = "mlp.router";
  traits.router_bias = traits.expert_biases = true;
  traits.gating = {kernels::Gating::Kind::kClamped, static_cast<float>(config.swiglu_alpha),
                   static_cast<float>(config.swiglu_limit)};
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"gpt_oss", build_gpt_oss}));

}  // namespace
}  // namespace vitrine::model
