// SPDX-License-Identifier: Apache-2.0
// Qwen3-Next: most layers keep a state (Gated DeltaNet) in place of keys and values; the others'
// attention has a gate on its output. Experts beside a shared one, behind a sigmoid gate.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_qwen3_next(const ModelConfig& config) {
  DecoderTraits traits;
  set_qwen3_next_layers(config, traits);
  traits.groups_linear_projections = config.linear_layout != LinearLayout::kConverted;
  traits.groups_linear_strengths = true;
  traits.normalize_top_k = config.norm_topk_prob.value_or(true);
  return build_decoder(config, traits);
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{"qwen3_next", build_qwen3_next}));

}  // namespace
}  // namespace vitrine::model
