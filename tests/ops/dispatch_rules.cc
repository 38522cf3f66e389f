// SPDX-License-Identifier: Apache-2.0
#include "tests/ops/dispatch_rules.h"

namespace vitrine::testing_support {

std::set<std::string> synchronizing_ops(const std::vector<DispatchedOp>& ops,
                                        const NativeFunctions& functions) {
  // The tags should name these too; they are the ones the rule was written for.
  static const std::set<std::string> known = {
      "_local_scalar_dense", "item", "is_nonzero", "nonzero", "masked_select", "equal"};
  std::set<std::string> found;
  for (const DispatchedOp& op : ops) {
    const std::string base = op.name.substr(0, op.name.find('.'));
    if (known.contains(base) || functions.is_tagged(op.name, "data_dependent_output") ||
        functions.is_tagged(op.name, "dynamic_output_shape")) {
      found.insert(op.name);
    }
  }
  return found;
}

std::set<std::string> ops_without_mps(const std::vector<DispatchedOp>& ops,
                                      const NativeFunctions& functions) {
  std::set<std::string> found;
  std::vector<bool> judged(ops.size(), true);  // false: MPS would not come here
  for (size_t i = 0; i < ops.size(); ++i) {
    const auto caller = static_cast<size_t>(ops[i].caller);
    if (ops[i].caller >= 0) {
      judged[i] = judged[caller] && functions.is_composite_everywhere(ops[caller].name);
    }
    if (judged[i] && !functions.has_mps_kernel(ops[i].name) &&
        !functions.is_composite_everywhere(ops[i].name)) {
      found.insert(ops[i].name);
    }
  }
  return found;
}

std::set<std::string> ops_making_float64(const std::vector<DispatchedOp>& ops) {
  std::set<std::string> found;
  for (const DispatchedOp& op : ops) {
    if (op.float64) found.insert(op.name);
  }
  return found;
}

}  // namespace vitrine::testing_support
