// SPDX-License-Identifier: Apache-2.0
// MiniMax-M2 (2025): scores by sigmoid, norms of whole rows of query and key.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_minimax_m2(const ModelConfig& config) {
  DecoderTraits traits;
  traits.query_key_norm = traits.norm_whole_row = true;
  traits.score = ops::RouterParameters::Score::kSigmoid;
  traits.correction = "block_sparse_moe.e_score_correction_bias";
  traits.normalize_top_k = true;
  set_mixtral_names(traits);
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"minimax_m2", build_minimax_m2}));

}  // namespace
}  // namespace vitrine::model
