// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/fused_plan.h"

#include "backend_cuda/cuda_op.h"
#include "backend_cuda/joint_plan.h"

namespace vitrine::backend_cuda {

FusedPlan::FusedPlan(DeviceRuntime& runtime, const engine::DeviceModelInputs& inputs)
    : builder_(runtime, inputs) {
  for (const ops::OpNode& node : inputs.graph.nodes) {
    const CudaOp& op = find_cuda_op(node.type);
    builder_.begin_node(node, op.for_rows, op.behind_choice);
    if (!op.takes_addend) builder_.finish_addend();
    op.plan(builder_, node);
    builder_.end_node(node);
    // What comes behind tells of the joint's tokens.
    if (inputs.graph.is_head(node) && inputs.joint != nullptr) {
      plan_joint(builder_, *inputs.joint);
    }
  }
  builder_.finish();
}

void FusedPlan::launch(const StepMemory& memory, Stream stream) const {
  for (const PlannedLaunch& launch : builder_.launches()) {
    if (launch.for_rows && memory.shape.rows == 0) continue;
    if (memory.shape.part != StepPart::kWhole &&
        launch.behind_choice != (memory.shape.part == StepPart::kBehindChoice)) {
      continue;
    }
    if (launch.condition != nullptr && !launch.condition(memory.shape)) continue;
    check(launch.start(memory, stream), "starting " + launch.what);
  }
}

}  // namespace vitrine::backend_cuda
