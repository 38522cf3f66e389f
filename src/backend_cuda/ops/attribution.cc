// SPDX-License-Identifier: Apache-2.0
// attribution: after the head, the terms of the chosen token's logit and of the runner-up's.
#include "kernels/cuda/attribution/attribution.h"
#include "backend_cuda/cuda_op.h"
#include "backend_cuda/plan_builder.h"
#include "ops/attribution.h"

namespace vitrine::backend_cuda {
namespace {

using kernels::cuda::Attribution;
using ops::OpNode;

void plan(PlanBuilder& builder, const OpNode& node) {
  const auto& parameters = node.as<ops::AttributionParameters>();
  const RowsBuffer& residual = builder.value(node.inputs[0]);
  const AuditLayout& layout = builder.layout();
  std::vector<kernels::cuda::AttributionPart> parts;
  for (const ops::AttributionPart& part : ops::attribution_parts(builder.graph())) {
    kernels::cuda::AttributionPart& own = parts.emplace_back();
    own.first = part.first;
    if (part.top_k == 0) continue;
    own.count = part.top_k + (part.has_shared ? 1 : 0);
    own.multiplier = static_cast<float>(part.multiplier);
    if (part.has_shared) {
      const bool is_gated = builder.routes(part.layer).shared_gates != nullptr;
      own.shared = is_gated ? kernels::cuda::AttributionPart::Shared::kGated
                            : kernels::cuda::AttributionPart::Shared::kWhole;
    }
  }
  Attribution own;
  own.hidden = residual.width;
  own.vectors = ops::attribution_vectors(builder.graph());
  if (own.vectors > kernels::cuda::kMaxAttributionVectors) {
    throw Error(ErrorKind::kUnsupported, "attribution of " + std::to_string(own.vectors) +
                                             " parts; CUDA's kernels take at most " +
                                             std::to_string(kernels::cuda::kMaxAttributionVectors) +
                                             ", use --kernels reference");
  }
  const int64_t rows = builder.max_rows(), vectors = own.vectors;
  const auto floats = [&](const char* name, int64_t count) {
    return static_cast<float*>(builder.scratch(name, count * 4));
  };
  own.kept = floats("attribution", rows * vectors * own.hidden);
  own.kept_weights = floats("attribution's weights", rows * vectors);
  own.parts = builder.weights().array(parts, "attribution's parts");
  own.num_parts = static_cast<int32_t>(parts.size());
  own.num_terms = static_cast<int32_t>(layout.terms.size());
  const kernels::cuda::EmbeddingTable& head =
      builder.weights().table(parameters.matrix, builder.graph().vocab_size, own.hidden);
  own.norm = builder.weights().vector({{parameters.norm, own.hidden}});
  own.eps = static_cast<float>(parameters.eps);
  own.multiplier = static_cast<float>(parameters.multiplier);
  own.residual = residual.data;
  own.ids = static_cast<int32_t*>(builder.scratch("attribution's ids", rows * 2 * 4));
  own.scales = floats("attribution's scales", rows);
  own.direction = floats("attribution's directions", rows * 2 * own.hidden);
  own.dots = floats("attribution's dots", rows * 2 * vectors);
  own.stride = layout.row_words;
  own.terms = layout.attribution;
  // It reads two rows of the head, which are no weights of the model's products.
  builder.set_weight_bytes(0);
  builder.add(
      [own, &head, top_ids = layout.top_ids](const StepMemory& memory, Stream stream) {
        Attribution now = own;
        now.head = head;
        now.row_tokens = memory.row_tokens;
        now.row_choices = memory.row_choices;
        now.host_choices = memory.host_choices;
        now.chosen_ids = memory.chosen_ids;
        const bool is_joint = memory.shape.joints > 0;
        now.best_ids =
            is_joint ? memory.joint.records + engine::kJointTopIds : memory.row_records + top_ids;
        now.best_stride = is_joint ? engine::kJointRecordWords : own.stride;
        now.words = memory.row_records;
        return kernels::cuda::attribute_rows(now, memory.shape.rows, stream);
      },
      "attribution");
}

VITRINE_REGISTER_CUDA_OP((CudaOp{
    .type = "attribution", .plan = plan, .for_rows = true, .behind_choice = true}));

}  // namespace
}  // namespace vitrine::backend_cuda
