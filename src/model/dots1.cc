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
  traits.score = ops::RouterParameters::Score::kSigmoid;
  traits.correction = "mlp.gate.e_score_correction_bias";
  traits.normalize_top_k = config.norm_topk_prob.value_or(true);
  traits.sum_epsilon = 1e-20;
  traits.shared_block = "mlp.shared_experts";
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"dots1", build_dots1}));

}  // namespace
}  // namespace vitrine::model
