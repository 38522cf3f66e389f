// SPDX-License-Identifier: Apache-2.0
// project: a linear op, whose result is added to the residual stream or stands by itself.
#include "backend_cuda/cuda_op.h"
#include "backend_cuda/low_rank.h"
#include "backend_cuda/plan_builder.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_cuda {
namespace {

using kernels::cuda::Epilogue;
using ops::OpNode;

void plan(PlanBuilder& builder, const OpNode& node) {
  const auto& own = node.as<ops::ProjectParameters>();
  RowsBuffer& in = builder.value(node.inputs[0]);
  RowsBuffer& out = builder.value(node.outputs[0]);
  Epilogue epilogue;
  if (!own.bias.empty()) epilogue.bias = builder.weights().vector({{own.bias, out.width}});
  epilogue.adds_residual = own.adds_to_residual;
  if (own.adds_to_residual) epilogue.residual_scale = static_cast<float>(own.multiplier);
  epilogue.out = out.data;
  epilogue.out_stride = out.width;
  builder.add_product(builder.weights().matrix(own.matrix, out.width, in.width), in, epilogue);
  add_low_rank(builder, {&in}, {{{own.matrix}, out.data, out.width, out.width}},
               own.adds_to_residual ? own.multiplier : 1.0);
}

VITRINE_REGISTER_CUDA_OP((CudaOp{.type = "project", .plan = plan}));

}  // namespace
}  // namespace vitrine::backend_cuda
