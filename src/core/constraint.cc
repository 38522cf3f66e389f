// SPDX-License-Identifier: Apache-2.0
#include "vitrine/constraint.h"

namespace vitrine {

std::string_view constraint_failure_name(ConstraintFailure::Kind kind) {
  switch (kind) {
    case ConstraintFailure::Kind::kDeadlock: return "deadlock";
    case ConstraintFailure::Kind::kRefused: return "refused";
    case ConstraintFailure::Kind::kUnfinished: return "unfinished";
    case ConstraintFailure::Kind::kRejected: return "rejected";
    case ConstraintFailure::Kind::kError: return "error";
  }
  return "?";
}

bool Constraint::keep_within(std::span<uint32_t> mask, uint32_t limit) {
  bool any = false;
  for (int32_t id = 0; id < vocab_size(); ++id) {
    uint32_t& word = mask[static_cast<size_t>(id) / 32];
    const uint32_t bit = 1U << (id % 32);
    if ((word & bit) == 0) continue;
    bool fits = false;
    if (accept(id)) {
      fits = tokens_to_finish() < limit;
      rollback(1);
    }
    if (!fits) word &= ~bit;
    any = any || fits;
  }
  return any;
}

}  // namespace vitrine
