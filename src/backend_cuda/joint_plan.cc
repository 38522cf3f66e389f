#include "backend_cuda/joint_plan.h"

#include <algorithm>

#include "kernels/cuda/federation/joint.h"
#include "kernels/cuda/head/head.h"

namespace vitrine::backend_cuda {

namespace {

using kernels::cuda::Head;
using kernels::cuda::HeadBlock;
using kernels::cuda::Joint;
using kernels::cuda::JointKind;
using kernels::cuda::JointSum;

JointKind kind_of(CombinerSpec::Kind kind) {
  switch (kind) {
    case CombinerSpec::Kind::kGate: return JointKind::kGate;
    case CombinerSpec::Kind::kProduct: return JointKind::kProduct;
    case CombinerSpec::Kind::kMixture: break;
  }
  return JointKind::kMixture;
}

Joint joint_for(PlanBuilder& builder, const engine::DeviceJointSpec& spec) {
  Joint joint;
  joint.kind = kind_of(spec.combiner.kind);
  joint.specialists = spec.specialists;
  joint.vocab = builder.graph().vocab_size;
  if (joint.kind == JointKind::kGate) {
    joint.hidden = spec.combiner.hidden_size;
    joint.gate = builder.weights().array(spec.combiner.gate, "a gate");
    joint.bias = builder.weights().array(spec.combiner.bias, "a gate");
  } else {
    std::ranges::copy(spec.combiner.weights, joint.weights);
  }
  const int64_t blocks = spec.max_rows * kernels::cuda::joint_blocks(joint.vocab);
  joint.sums = static_cast<JointSum*>(builder.scratch(
      "a joint's sums", blocks * spec.specialists * static_cast<int64_t>(sizeof(JointSum))));
  return joint;
}

// The joint's statistics, as a head makes those of its logits.
Head head_for(PlanBuilder& builder, const engine::DeviceJointSpec& spec) {
  Head head;
  head.vocab = builder.graph().vocab_size;
  const int64_t blocks = spec.max_rows * kernels::cuda::head_blocks(head.vocab);
  head.blocks = static_cast<HeadBlock*>(
      builder.scratch("a joint's statistics", blocks * static_cast<int64_t>(sizeof(HeadBlock))));
  head.record = {nullptr,
                 engine::kJointRecordWords,
                 engine::kJointChosenLogit,
                 engine::kJointLogSumExp,
                 engine::kJointEntropy,
                 engine::kJointTopIds,
                 engine::kJointTopLogits,
                 engine::kJointDigest};
  return head;
}

}  // namespace

void plan_joint(PlanBuilder& builder, const engine::DeviceJointSpec& spec) {
  static_assert(kernels::cuda::joint_values(5) == engine::joint_value_count(5));
  const ops::OpNode node{.type = "joint"};
  builder.begin_node(node, /*for_rows=*/true);
  builder.set_condition(has_joint);
  const Joint joint = joint_for(builder, spec);
  const auto of_step = [joint](const StepMemory& memory) {
    Joint own = joint;
    own.sources = memory.joint_sources;
    own.rows = memory.joint_rows;
    own.logits = memory.joint_logits;
    own.values = memory.joint_values;
    own.chosen_ids = memory.chosen_ids;
    return own;
  };
  builder.add(
      [of_step](const StepMemory& memory, Stream stream) {
        return kernels::cuda::joint_rows(of_step(memory), memory.shape.joints, stream);
      },
      std::string(combiner_kind_name(spec.combiner.kind)));
  const Head head = head_for(builder, spec);
  builder.add(
      [head](const StepMemory& memory, Stream stream) {
        Head own = head;
        own.logits = memory.joint_logits;
        own.targets = memory.joint_targets;
        own.chosen_ids = memory.chosen_ids;
        own.record.words = memory.joint_records;
        return kernels::cuda::head_epilogue(own, memory.shape.joints, stream);
      },
      "top_10+digest");
  if (spec.max_sampled > 0) {
    builder.set_condition(has_sampled_joint);
    builder.add(
        [vocab = head.vocab](const StepMemory& memory, Stream stream) {
          kernels::cuda::Sampling sampling;
          sampling.vocab = vocab;
          sampling.logits = memory.joint_logits;
          sampling.steps = memory.steps;
          sampling.words = memory.words;
          sampling.chosen_ids = memory.chosen_ids;
          sampling.facts = memory.choice_facts;
          sampling.records =
              reinterpret_cast<float*>(memory.joint_records) + engine::kJointChosenLogit;
          sampling.record_stride = engine::kJointRecordWords;
          return kernels::cuda::sample_rows(sampling, memory.shape.joints, stream);
        },
        "sample");
    builder.set_condition(has_joint);
  }
  builder.add(
      [of_step](const StepMemory& memory, Stream stream) {
        return kernels::cuda::joint_account(of_step(memory), memory.shape.joints, stream);
      },
      "account");
  builder.set_condition(nullptr);
  builder.end_node(node);
}

}  // namespace vitrine::backend_cuda
