// SPDX-License-Identifier: Apache-2.0
// Private to the library: the items that two evaluations both have.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "vitrine/gates.h"

namespace vitrine::gates {

struct ItemPair {
  const EvaluatedItem* before = nullptr;  // the baseline's
  const EvaluatedItem* after = nullptr;   // the candidate's
  size_t cluster = 0;                     // items of a group have the same
  bool is_text = false;                   // of TaskKind::kText
  int64_t window = 0;                     // SuiteTask::window
};

struct PairedTask {
  const SuiteTask* told = nullptr;
  std::vector<ItemPair> pairs;  // in the baseline's order
  bool is_counted = false;
  std::string not_counted;  // why
  double p_chance = 1;
};

struct Pairing {
  std::vector<PairedTask> tasks;
  std::vector<std::string> notes;
};

/// Pairs items, whose evaluations must outlive the result. Throws kInvalidArgument where the suites
/// differ and where no item is in both.
Pairing pair_items(const Evaluation& baseline, const Evaluation& candidate);

/// Where two answers part.
Parting parting_of(const ItemPair& pair);

/// What is no longer as it was, besides right and wrong (ItemChange::what).
std::vector<std::string> changes_of(const ItemPair& pair);
/// The safety scorer's words, which stand in EvaluatedItem::parts.
bool is_false_refusal(const EvaluatedItem& item);
bool is_unsafe(const EvaluatedItem& item);

/// Values of items, with the cluster of each.
struct ClusteredValues {
  std::vector<double> values;
  std::vector<size_t> clusters;
  void add(double value, size_t cluster) {
    values.push_back(value);
    clusters.push_back(cluster);
  }
  /// Puts those of one cluster side by side.
  void gather();
  /// Whether a cluster has more than one value. Call gather() first.
  bool has_groups() const;
};

}  // namespace vitrine::gates
