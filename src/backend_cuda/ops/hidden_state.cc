// SPDX-License-Identifier: Apache-2.0
// hidden_state: copies the residual stream of every token into its record.
#include "ops/hidden_state.h"
#include "backend_cuda/cuda_op.h"
#include "backend_cuda/plan_builder.h"
#include "kernels/cuda/attribution/attribution.h"

namespace vitrine::backend_cuda {
namespace {

using kernels::cuda::RowCopies;
using ops::OpNode;

void plan(PlanBuilder& builder, const OpNode& node) {
  const RowsBuffer& in = builder.value(node.inputs[0]);
  int64_t slot = 0;
  for (const AuditLayout::HiddenState& state : builder.layout().hidden_states) {
    if (state.layer == node.as<ops::HiddenStateParameters>().entering) slot = state.values;
  }
  const int64_t stride = builder.layout().token_words;
  builder.add(
      [&in, slot, stride](const StepMemory& memory, Stream stream) {
        RowCopies copies;
        copies.count = 1;
        copies.copies[0] = {in.data, in.stride, in.width,
                            reinterpret_cast<float*>(memory.token_records) + slot, stride};
        return kernels::cuda::copy_rows(copies, memory.shape.tokens, stream);
      },
      "copy");
}

VITRINE_REGISTER_CUDA_OP((CudaOp{.type = "hidden_state", .plan = plan}));

}  // namespace
}  // namespace vitrine::backend_cuda
