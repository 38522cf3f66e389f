// SPDX-License-Identifier: Apache-2.0
// LFM2 with experts (Liquid AI 2025): most layers are short convolutions, which keep their last
// inputs in place of keys and values; the others attend. Scores by sigmoid, corrected for the
// choice.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_lfm2_moe(const ModelConfig& config) {
  DecoderTraits traits;
  traits.query_key_norm = true;
  traits.input_norm = "operator_norm";
  traits.block_norm = "ffn_norm";
  traits.final_norm = "model.embedding_norm";
  traits.query_norm = "self_attn.q_layernorm";
  traits.key_norm = "self_attn.k_layernorm";
  traits.output = "self_attn.out_proj";
  traits.dense_block = traits.block = "feed_forward";
  traits.router = "feed_forward.gate";
  traits.gate = "w1";
  traits.up = "w3";
  traits.down = "w2";
  traits.score = ops::RouterParameters::Score::kSigmoid;
  if (config.corrects_scores) traits.correction = "feed_forward.expert_bias";
  traits.normalize_top_k = config.norm_topk_prob.value_or(true);
  traits.sum_epsilon = 1e-6;
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"lfm2_moe", build_lfm2_moe}));

}  // namespace
}  // namespace vitrine::model
