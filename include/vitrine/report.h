// SPDX-License-Identifier: Apache-2.0
// The room `gates`: comparisons and verdicts as a page that people read.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vitrine/gates.h"
#include "vitrine/parting.h"

namespace vitrine {

/// Where the logs of one item part, for a report.
struct ReportedParting {
  std::string task = {};    ///< the item's
  std::string id = {};      ///< the item's
  LogParting parting = {};  ///< of its two logs
};

/// A candidate as a report shows it.
struct ReportedCandidate {
  const Evaluation* evaluation = nullptr;            ///< what it answered (not owned)
  const EvaluationComparison* comparison = nullptr;  ///< beside the baseline (not owned)
  const Verdict* verdict = nullptr;            ///< of a gate (not owned); null: there was none
  std::vector<ReportedParting> partings = {};  ///< of flips, where both have logs
  std::optional<DeviationCell> first = {};     ///< by the means over all items with logs
  bool has_noise = false;                      ///< partings are above measured noise
};

/// Returns a report as one HTML file that needs no network: where each candidate parted from the
/// baseline, verdicts and rules, tasks with intervals, flips with both answers, calibration, speed
/// and memory, and a plot of divergence and flips against bytes. Throws kInvalidArgument for no
/// candidate. Thread-safe.
VITRINE_API std::string report_page(const Evaluation& baseline,
                                    std::span<const ReportedCandidate> candidates);

}  // namespace vitrine
