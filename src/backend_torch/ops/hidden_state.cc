// SPDX-License-Identifier: Apache-2.0
// hidden_state: keeps the residual stream of every token for its record.
#include "backend_torch/torch_op.h"

namespace vitrine::backend_torch {
namespace {

// A tensor that is kept costs no call.
void reference_hidden_state(ReferenceStep& step, const ops::OpNode& node) {
  const at::Tensor& stream = step.input(node, 0);
  if (step.audit != nullptr) step.audit->hidden_states.push_back(stream);
  step.observe(stream);
}

VITRINE_REGISTER_TORCH_OP((TorchOp{"hidden_state", reference_hidden_state}));

}  // namespace
}  // namespace vitrine::backend_torch
