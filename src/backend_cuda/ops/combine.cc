// SPDX-License-Identifier: Apache-2.0
// combine: the sum over experts, which the norm behind it makes.
#include "backend_cuda/cuda_op.h"
#include "backend_cuda/plan_builder.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_cuda {
namespace {

using kernels::cuda::Addend;
using kernels::cuda::Epilogue;
using ops::OpNode;

void plan(PlanBuilder& builder, const OpNode& node) {
  const auto& parameters = node.as<ops::CombineParameters>();
  RowsBuffer& in = builder.value(node.inputs[1]);
  Routes& routes = builder.routes(node.layer);
  Addend addend;
  addend.kind = Addend::Kind::kExperts;
  addend.multiplier = static_cast<float>(parameters.multiplier);
  addend.slots = builder.value(node.inputs[0]).data;
  addend.weights = routes.weights;
  addend.top_k = routes.top_k;
  if (node.inputs.size() > 2) addend.shared = builder.value(node.inputs[2]).data;
  if (!parameters.shared_gate.empty()) {
    auto* gates =
        static_cast<float*>(builder.scratch("shared experts' gates", builder.max_tokens() * 4));
    Epilogue epilogue;
    epilogue.out = gates;
    epilogue.out_stride = 1;
    builder.add_product(
        builder.weights().matrix(parameters.shared_gate, 1, in.width, Precision::kAsCpu), in,
        epilogue);
    addend.shared_gate = routes.shared_gates = gates;
  }
  builder.set_addend(addend);
}

VITRINE_REGISTER_CUDA_OP((CudaOp{.type = "combine", .plan = plan}));

}  // namespace
}  // namespace vitrine::backend_cuda
