// SPDX-License-Identifier: Apache-2.0
// The rules that the reference path's ATen calls keep. Each returns what breaks it, one line each.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "tests/ops/dispatch_recorder.h"
#include "tests/ops/native_functions.h"

namespace vitrine::testing_support {

/// Ops that make the host wait for a device's value: to hand it over, or to learn a shape.
std::set<std::string> synchronizing_ops(const std::vector<DispatchedOp>& ops,
                                        const NativeFunctions& functions);

/// Ops that MPS could not run. What a kernel calls is judged only where MPS has no kernel of its
/// own in that kernel's place, since it would not be called there.
std::set<std::string> ops_without_mps(const std::vector<DispatchedOp>& ops,
                                      const NativeFunctions& functions);

/// Ops that make a float64 tensor; MPS has none.
std::set<std::string> ops_making_float64(const std::vector<DispatchedOp>& ops);

}  // namespace vitrine::testing_support
