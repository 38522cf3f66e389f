// SPDX-License-Identifier: Apache-2.0
// Private to the library: the records of one item's log, and how two of them differ.
#pragma once

#include <functional>
#include <vector>

#include "vitrine/parting.h"

namespace vitrine::gates {

/// What rounding makes of equal values in a log of level standard.
double rounding_of(PartingProbe probe);

/// A log's records by position. Of a position that stands there twice (a preempted answer) the
/// first one counts.
struct ItemRun {
  std::vector<TokenRecord> records;  // ascending, gaps left out
  int64_t prompt_tokens = 0;         // positions before the first generated token
};

ItemRun read_run(const std::string& path, const std::optional<SealKey>& reader);

struct Difference {
  double value = 0;
  int32_t expert = -1;
};

using OnDifference =
    std::function<bool(int32_t layer, PartingProbe probe, const Difference& difference)>;

/// Tells each probe of two records in the order of computation, until `on_difference` says false:
/// each expert's output that both runs asked.
void compare_records(const TokenRecord& a, const TokenRecord& b, const OnDifference& on_difference);

}  // namespace vitrine::gates
