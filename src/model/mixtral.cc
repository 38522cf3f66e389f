// SPDX-License-Identifier: Apache-2.0
// Mixtral (Jiang et al. 2024): w1 is the gate, w3 the up and w2 the down projection.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_mixtral(const ModelConfig& config) {
  DecoderTraits traits;
  traits.normalize_top_k = true;
  traits.block = "block_sparse_moe";
  traits.router = "block_sparse_moe.gate";
  traits.gate = "w1";
  traits.up = "w3";
  traits.down = "w2";
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"mixtral", build_mixtral}));

}  // namespace
}  // namespace vitrine::model
