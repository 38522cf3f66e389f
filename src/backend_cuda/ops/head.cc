// SPDX-License-Identifier: Apache-2.0
// head: the logits, and what they come to.
#include "kernels/cuda/head/head.h"
#include "backend_cuda/cuda_op.h"
#include "backend_cuda/plan_builder.h"
#include "kernels/cuda/sample/sample.h"
#include "ops/decoder_ops.h"

namespace vitrine::backend_cuda {
namespace {

using kernels::cuda::Epilogue;
using ops::OpNode;

void plan(PlanBuilder& builder, const OpNode& node) {
  RowsBuffer& in = builder.value(node.inputs[0]);
  const int64_t vocab = builder.graph().vocab_size;
  Epilogue epilogue;  // writes to StepMemory::logits
  epilogue.out_stride = vocab;
  builder.add_product(
      builder.weights().matrix(node.as<ops::HeadParameters>().matrix, vocab, in.width), in,
      epilogue);
  kernels::cuda::Head head;
  head.vocab = vocab;
  head.multiplier = static_cast<float>(node.as<ops::HeadParameters>().multiplier);
  head.blocks = static_cast<kernels::cuda::HeadBlock*>(builder.scratch(
      "the head's statistics", builder.max_rows() * kernels::cuda::head_blocks(vocab) *
                                   static_cast<int64_t>(sizeof(kernels::cuda::HeadBlock))));
  const AuditLayout& layout = builder.layout();
  head.record = {nullptr,        layout.row_words, layout.chosen_logit, layout.log_sum_exp,
                 layout.entropy, layout.top_ids,   layout.top_logits,   layout.logits_digest};
  // Where a joint is made of the rows, all that is left to do here is to multiply.
  if (head.multiplier == 1.0F) builder.set_condition(has_no_joint);
  int32_t* unread = nullptr;
  if (head.multiplier != 1.0F) {
    unread =
        static_cast<int32_t*>(builder.scratch("ids of a joint's rows", builder.max_rows() * 4));
  }
  builder.add(
      [head, unread](const StepMemory& memory, Stream stream) {
        kernels::cuda::Head own = head;
        own.logits = memory.logits;
        own.targets = memory.row_targets;
        own.chosen_ids = memory.shape.joints > 0 ? unread : memory.chosen_ids;
        if (head.record.stride > 0) own.record.words = memory.row_records;
        return kernels::cuda::head_epilogue(own, memory.shape.rows, stream);
      },
      "log_sum_exp+top_10+digest");
  builder.set_condition(nullptr);
  if (!samples_on_device(builder.options())) return;
  builder.set_condition(has_samplers);
  builder.add(
      [head](const StepMemory& memory, Stream stream) {
        kernels::cuda::Sampling sampling;
        sampling.vocab = head.vocab;
        sampling.logits = memory.logits;
        sampling.steps = memory.steps;
        sampling.words = memory.words;
        sampling.chosen_ids = memory.chosen_ids;
        sampling.facts = memory.choice_facts;
        if (head.record.stride > 0) {
          sampling.records =
              reinterpret_cast<float*>(memory.row_records) + head.record.chosen_logit;
          sampling.record_stride = head.record.stride;
        }
        return kernels::cuda::sample_rows(sampling, memory.shape.rows, stream);
      },
      "sample");
  builder.set_condition(nullptr);
}

VITRINE_REGISTER_CUDA_OP((CudaOp{.type = "head", .plan = plan, .for_rows = true}));

}  // namespace
}  // namespace vitrine::backend_cuda
