// SPDX-License-Identifier: Apache-2.0
// project: the output projection of attention, added to the residual stream.
#include "backend_cuda/cuda_op.h"
#include "backend_cuda/low_rank.h"
#include "backend_cuda/plan_builder.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_cuda {
namespace {

using kernels::cuda::Epilogue;
using ops::OpNode;

void plan(PlanBuilder& builder, const OpNode& node) {
  RowsBuffer& in = builder.value(node.inputs[0]);
  RowsBuffer& residual = builder.value(node.outputs[0]);
  Epilogue epilogue;
  if (!node.as<ops::ProjectParameters>().bias.empty()) {
    epilogue.bias =
        builder.weights().vector({{node.as<ops::ProjectParameters>().bias, residual.width}});
  }
  epilogue.adds_residual = true;
  epilogue.residual_scale = static_cast<float>(node.as<ops::ProjectParameters>().multiplier);
  epilogue.out = residual.data;
  epilogue.out_stride = residual.width;
  const std::string& module = node.as<ops::ProjectParameters>().matrix;
  builder.add_product(builder.weights().matrix(module, residual.width, in.width), in, epilogue);
  add_low_rank(builder, {&in}, {{{module}, residual.data, residual.width, residual.width}},
               node.as<ops::ProjectParameters>().multiplier);
}

VITRINE_REGISTER_CUDA_OP((CudaOp{.type = "project", .plan = plan}));

}  // namespace
}  // namespace vitrine::backend_cuda
