// SPDX-License-Identifier: Apache-2.0
// Mixtral (Jiang et al. 2024): w1 is the gate, w3 the up and w2 the down projection.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_mixtral(const ModelConfig& config) {
  DecoderTraits traits;
  traits.normalize_top_k = true;
  set_mixtral_names(traits);
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"mixtral", build_mixtral}));

}  // namespace
}  // namespace vitrine::model
