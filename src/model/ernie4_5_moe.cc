// SPDX-License-Identifier: Apache-2.0
// ERNIE 4.5 (Baidu 2025): probabilities that are corrected for the choice, neighbours are rotated.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_ernie4_5_moe(const ModelConfig& config) {
  if (config.attention_bias) {
    throw Error(ErrorKind::kUnsupported,
                "config.json: field 'use_bias' is true; expected false: experts of ernie4_5_moe "
                "with biases do not run in this version");
  }
  DecoderTraits traits;
  traits.rotates_neighbours = true;
  traits.correction = "mlp.moe_statics.e_score_correction_bias";
  traits.normalize_top_k = true;
  traits.least_sum = 1e-12;
  traits.shared_block = "mlp.shared_experts";
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"ernie4_5_moe", build_ernie4_5_moe}));

}  // namespace
}  // namespace vitrine::model
