// SPDX-License-Identifier: Apache-2.0
// dense_ffn: a dense block, or the shared expert of a sparse one.
#include "backend_cuda/cuda_op.h"
#include "backend_cuda/low_rank.h"
#include "backend_cuda/plan_builder.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_cuda {
namespace {

using kernels::cuda::Epilogue;
using ops::OpNode;

void plan(PlanBuilder& builder, const OpNode& node) {
  const auto& parameters = node.as<ops::DenseParameters>();
  RowsBuffer& in = builder.value(node.inputs[0]);
  RowsBuffer& out = builder.value(node.outputs[0]);
  const int64_t intermediate = parameters.intermediate;
  const auto rows_of = [&](const char* name) -> RowsBuffer& {
    return builder.shared_rows(name, builder.max_tokens(), intermediate);
  };
  RowsBuffer& hidden = rows_of("a dense block's hidden layer");
  hidden.is_for_products = true;
  const DeviceMatrix& gate = builder.weights().matrix(parameters.gate, intermediate, in.width);
  const DeviceMatrix& up = builder.weights().matrix(parameters.up, intermediate, in.width);
  const bool splits = is_adapted(builder, {{{parameters.gate}}, {{parameters.up}}});
  if (splits) builder.set_condition(has_no_adapters);
  builder.add_gate_up(gate, up, in, hidden);
  builder.set_condition(nullptr);
  if (splits) {
    RowsBuffer& gate_rows = rows_of("a dense block's gate");
    RowsBuffer& up_rows = rows_of("a dense block's up");
    Epilogue to_half;
    to_half.out_stride = intermediate;
    builder.set_condition(has_adapters);
    to_half.out = gate_rows.data;
    builder.add_product(gate, in, to_half);
    to_half.out = up_rows.data;
    builder.add_product(up, in, to_half);
    add_low_rank(builder, {&in},
                 {{{parameters.gate}, gate_rows.data, intermediate, intermediate},
                  {{parameters.up}, up_rows.data, intermediate, intermediate}});
    builder.set_condition(has_adapters);
    builder.add_gating(parameters.gating, gate_rows, up_rows, hidden, 1);
    builder.set_condition(nullptr);
  }
  builder.add_forms(hidden, 1);
  Epilogue epilogue;
  epilogue.adds_residual = parameters.adds_to_residual;
  if (epilogue.adds_residual) {
    epilogue.residual_scale = static_cast<float>(parameters.multiplier);
  }
  epilogue.out = out.data;
  epilogue.out_stride = out.width;
  builder.add_product(builder.weights().matrix(parameters.down, out.width, intermediate), hidden,
                      epilogue);
  add_low_rank(builder, {&hidden}, {{{parameters.down}, out.data, out.width, out.width}},
               parameters.multiplier);
}

VITRINE_REGISTER_CUDA_OP((CudaOp{.type = "dense_ffn", .plan = plan}));

}  // namespace
}  // namespace vitrine::backend_cuda
