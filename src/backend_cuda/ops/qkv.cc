// SPDX-License-Identifier: Apache-2.0
// qkv: the query, key and value projections, side by side in one array.
#include "backend_cuda/cuda_op.h"
#include "backend_cuda/low_rank.h"
#include "backend_cuda/plan_builder.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_cuda {
namespace {

using kernels::cuda::Epilogue;
using ops::OpNode;

void plan(PlanBuilder& builder, const OpNode& node) {
  const auto& parameters = node.as<ops::QkvParameters>();
  RowsBuffer& in = builder.value(node.inputs[0]);
  std::vector<MatrixPart> parts;
  std::vector<std::pair<std::string, int64_t>> biases;
  int64_t width = 0;
  for (size_t i = 0; i < 3; ++i) {
    const int64_t rows = builder.value(node.outputs[i]).width;
    parts.push_back({parameters.matrices[i], rows});
    if (!parameters.biases[i].empty()) biases.emplace_back(parameters.biases[i], rows);
    width += rows;
  }
  auto* rows_of_all = static_cast<float*>(
      builder.scratch("queries, keys and values", builder.max_tokens() * width * 4));
  int64_t first = 0;
  for (const ops::ValueId id : node.outputs) {
    RowsBuffer& out = builder.value(id);
    out.data = rows_of_all + first;
    out.stride = width;
    first += out.width;
  }
  const float* bias = biases.size() == 3 ? builder.weights().vector(biases) : nullptr;
  Epilogue epilogue;
  epilogue.out = rows_of_all;
  epilogue.out_stride = width;
  epilogue.bias = bias;
  const DeviceMatrix* all = builder.weights().stacked(parts, in.width);
  if (all != nullptr) builder.add_product(*all, in, epilogue);
  for (size_t i = 0; all == nullptr && i < 3; ++i) {
    float* out = builder.value(node.outputs[i]).data;
    epilogue.out = out;
    epilogue.bias = bias != nullptr ? bias + (out - rows_of_all) : nullptr;
    builder.add_product(builder.weights().matrix(parts[i].module, parts[i].rows, in.width), in,
                        epilogue);
  }
  std::vector<AdaptedProduct> adapted;
  for (size_t i = 0; i < 3; ++i) {
    const RowsBuffer& out = builder.value(node.outputs[i]);
    adapted.push_back({{parts[i].module}, out.data, out.stride, out.width});
  }
  add_low_rank(builder, {&in}, adapted);
}

VITRINE_REGISTER_CUDA_OP((CudaOp{.type = "qkv", .plan = plan, .places_outputs = true}));

}  // namespace
}  // namespace vitrine::backend_cuda
