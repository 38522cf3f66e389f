// SPDX-License-Identifier: Apache-2.0
// A federation's joint as launches behind a model's head.
#pragma once

#include "backend_cuda/plan_builder.h"
#include "engine/run/device_joint.h"

namespace vitrine::backend_cuda {

/// Plans what shapes with rows of a joint do: make these of the step's rows of logits, choose by
/// them, and take down what the host's account needs.
void plan_joint(PlanBuilder& builder, const engine::DeviceJointSpec& spec);

}  // namespace vitrine::backend_cuda
