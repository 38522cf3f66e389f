// SPDX-License-Identifier: Apache-2.0
// rms_norm: with the sum into the residual stream before it, and bf16, E4M3 and the first int8 form
// behind it.
#include "kernels/cuda/norm/rms_norm.h"
#include "backend_cuda/cuda_op.h"
#include "backend_cuda/plan_builder.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_cuda {
namespace {

using ops::OpNode;

void plan(PlanBuilder& builder, const OpNode& node) {
  const auto& parameters = node.as<ops::NormParameters>();
  RowsBuffer& in = builder.value(node.inputs[0]);
  RowsBuffer& out = builder.value(node.outputs[0]);
  kernels::cuda::RmsNorm norm;
  norm.n = in.width;
  norm.eps = static_cast<float>(parameters.eps);
  norm.weight = builder.weights().vector({{parameters.weight, in.width}});
  norm.residual = in.data;
  if (out.is_head_input) builder.finish_addend();  // it reads the rows of few tokens
  const std::optional<kernels::cuda::Addend> addend = builder.take_addend();
  if (addend.has_value()) norm.addend = *addend;
  const AuditLayout::Layer* record =
      parameters.is_recorded(node) ? builder.record_of(node.layer) : nullptr;
  const int32_t slot = record != nullptr ? record->residual_norm : -1;
  const int64_t stride = builder.layout().token_words;
  builder.add(
      [&out, norm, slot, stride](const StepMemory& memory, Stream stream) {
        kernels::cuda::RmsNorm own = norm;
        own.out = out.values(memory);
        if (out.is_head_input) own.input_rows = memory.row_tokens;
        auto form = out.forms.begin();
        if (form != out.forms.end() && form->first == kBf16Form) own.bf16_rows = form++->second;
        if (form != out.forms.end() && form->first == kE4M3Form) own.e4m3_rows = form++->second;
        if (form != out.forms.end()) {
          own.group_size = form->first;
          own.int8_rows = form->second;
        }
        if (slot >= 0) {
          own.norms = reinterpret_cast<float*>(memory.token_records) + slot;
          own.norm_stride = stride;
        }
        return kernels::cuda::rms_norm(
            own, out.is_head_input ? memory.shape.rows : memory.shape.tokens, stream);
      },
      addend.has_value() ? "combine+rms_norm" : "rms_norm");
  builder.add_further_forms(out);
}

VITRINE_REGISTER_CUDA_OP((CudaOp{.type = "rms_norm", .plan = plan, .takes_addend = true}));

}  // namespace
}  // namespace vitrine::backend_cuda
