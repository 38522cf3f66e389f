// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/joint_plan.h"

#include <utility>

#include "backend_cuda/joint_kernels.h"

namespace vitrine::backend_cuda {

using kernels::cuda::HeadBlock;
using kernels::cuda::JointSum;

void plan_joint(PlanBuilder& builder, const engine::DeviceJointSpec& spec) {
  const ops::OpNode node{.type = "joint"};
  builder.begin_node(node, /*for_rows=*/true);
  const int64_t vocab = builder.graph().vocab_size;
  JointScratch scratch;
  scratch.sums =
      static_cast<JointSum*>(builder.scratch("a joint's sums", joint_sums_bytes(spec, vocab)));
  scratch.blocks = static_cast<HeadBlock*>(
      builder.scratch("a joint's statistics", joint_blocks_bytes(spec, vocab)));
  if (spec.combiner.kind == CombinerSpec::Kind::kGate) {
    scratch.gate = builder.weights().array(spec.combiner.gate, "a gate");
    scratch.bias = builder.weights().array(spec.combiner.bias, "a gate");
  }
  for (JointLaunch& launch : joint_launches(spec, vocab, scratch)) {
    builder.set_condition(launch.samples ? has_sampled_joint : has_joint);
    builder.add(
        [start = std::move(launch.start)](const StepMemory& memory, Stream stream) {
          return start(memory.joint, stream);
        },
        launch.what);
  }
  builder.set_condition(nullptr);
  builder.end_node(node);
}

}  // namespace vitrine::backend_cuda
