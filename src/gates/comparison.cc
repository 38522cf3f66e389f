// SPDX-License-Identifier: Apache-2.0
#include "vitrine/gates.h"

namespace vitrine {

EvaluationComparison compare_evaluations(const Evaluation& baseline, const Evaluation& candidate) {
  if (baseline.suite_digest != candidate.suite_digest) {
    throw Error(ErrorKind::kInvalidArgument,
                candidate.path + ": its suite is '" + candidate.suite + "' " +
                    candidate.suite_version + " (" + candidate.suite_digest +
                    "); expected that of " + baseline.path + " (" + baseline.suite_digest + ")");
  }
  EvaluationComparison comparison;
  for (const EvaluatedItem& before : baseline.items) {
    const EvaluatedItem* after = candidate.find(before.task, before.id);
    if (after == nullptr) continue;
    ++comparison.num_items;
    if (before.digest == after->digest) ++comparison.equal_digests;
    if (before.is_right != after->is_right) {
      comparison.flips.push_back({before.task, before.id, before.is_right});
    }
  }
  return comparison;
}

}  // namespace vitrine
