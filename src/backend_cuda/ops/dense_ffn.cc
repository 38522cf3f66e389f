// dense_ffn: a dense block, or the shared expert of a sparse one.
#include "backend_cuda/cuda_op.h"
#include "backend_cuda/plan_builder.h"

namespace vitrine::backend_cuda {
namespace {

using kernels::cuda::Epilogue;
using ops::OpNode;

void plan(PlanBuilder& builder, const OpNode& node) {
  RowsBuffer& in = builder.value(node.inputs[0]);
  RowsBuffer& out = builder.value(node.outputs[0]);
  const int64_t intermediate = node.integer("intermediate");
  RowsBuffer& hidden =
      builder.shared_rows("a dense block's hidden layer", builder.max_tokens(), intermediate);
  const DeviceMatrix& gate = builder.weights().matrix(node.weight("gate"), intermediate, in.width);
  const DeviceMatrix& up = builder.weights().matrix(node.weight("up"), intermediate, in.width);
  builder.add_gate_up(gate, up, in, hidden);
  Epilogue epilogue;
  epilogue.adds_residual = node.flag("residual");
  if (epilogue.adds_residual) {
    epilogue.residual_scale = static_cast<float>(node.attribute("multiplier", 1.0));
  }
  epilogue.out = out.data;
  epilogue.out_stride = out.width;
  builder.add_product(builder.weights().matrix(node.weight("down"), out.width, intermediate),
                      hidden, epilogue);
}

VITRINE_REGISTER_CUDA_OP((CudaOp{.type = "dense_ffn", .plan = plan}));

}  // namespace
}  // namespace vitrine::backend_cuda
