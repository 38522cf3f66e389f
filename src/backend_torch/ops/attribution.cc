// SPDX-License-Identifier: Apache-2.0
// attribution_probe: keeps what an op left in the residual stream.
#include "ops/attribution.h"
#include "backend_torch/torch_op.h"

namespace vitrine::backend_torch {
namespace {

// Experts leave their outputs themselves; a tensor that is kept costs no call.
void reference_probe(ReferenceStep& step, const ops::OpNode& node) {
  if (step.attribution == nullptr || node.as<ops::AttributionProbeParameters>().has_experts())
    return;
  step.attribution->keep_stream(step.input(node, 0));
}

VITRINE_REGISTER_TORCH_OP((TorchOp{ops::kAttributionProbe, reference_probe}));

}  // namespace
}  // namespace vitrine::backend_torch
