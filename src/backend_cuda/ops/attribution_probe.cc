// SPDX-License-Identifier: Apache-2.0
// attribution_probe: keeps what an op left, of the tokens whose logits are asked for.
#include "backend_cuda/cuda_op.h"
#include "backend_cuda/plan_builder.h"
#include "kernels/cuda/attribution/attribution.h"
#include "ops/attribution.h"

namespace vitrine::backend_cuda {
namespace {

using kernels::cuda::RowCopies;
using ops::OpNode;

void plan(PlanBuilder& builder, const OpNode& node) {
  const RowsBuffer& in = builder.value(node.inputs[0]);
  const int64_t hidden = builder.value(builder.graph().stream()).width;
  const int64_t vectors = ops::attribution_vectors(builder.graph());
  const int64_t first = node.as<ops::AttributionProbeParameters>().first;
  auto* kept = static_cast<float*>(
      builder.scratch("attribution", builder.max_rows() * vectors * hidden * 4));
  auto* weights = static_cast<float*>(
      builder.scratch("attribution's weights", builder.max_rows() * vectors * 4));
  RowCopies copies;
  const auto copy = [&](const float* from, int64_t width, float* to, int64_t to_stride) {
    copies.copies[copies.count++] = {from, width, width, to, to_stride};
  };
  copy(in.data, in.width, kept + first * hidden, vectors * hidden);
  if (node.as<ops::AttributionProbeParameters>().has_experts()) {
    // The next layer's routes will stand where this layer's do.
    const Routes& routes = builder.routes(node.layer);
    const int64_t shared = first + routes.top_k;
    copy(routes.weights, routes.top_k, weights + first, vectors);
    if (node.inputs.size() > 1) {
      copy(builder.value(node.inputs[1]).data, hidden, kept + shared * hidden, vectors * hidden);
    }
    if (routes.shared_gates != nullptr) copy(routes.shared_gates, 1, weights + shared, vectors);
  }
  builder.add(
      [copies](const StepMemory& memory, Stream stream) {
        RowCopies own = copies;
        own.index = memory.row_tokens;
        return kernels::cuda::copy_rows(own, memory.shape.rows, stream);
      },
      "copy");
}

VITRINE_REGISTER_CUDA_OP((CudaOp{
    .type = "attribution_probe", .plan = plan, .takes_addend = true, .for_rows = true}));

}  // namespace
}  // namespace vitrine::backend_cuda
