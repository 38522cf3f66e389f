// SPDX-License-Identifier: Apache-2.0
// The sealed logs of items, which `eval --audit` wrote: where two runs part.
#pragma once

#include <string>
#include <vector>

#include "common.h"
#include "vitrine/gates.h"
#include "vitrine/parting.h"
#include "vitrine/report.h"

namespace cli {

/// Where the logs are.
struct LogFolders {
  std::string baseline, reader;
  std::vector<std::string> candidates, noise;

  void add_to(CLI::App& command);
};

/// Measures what noise does by the logs of its evaluations; of none the profile is empty.
vitrine::DeviationProfile measure_noise(const LogFolders& folders,
                                        const vitrine::Evaluation& baseline,
                                        const std::vector<vitrine::Evaluation>& noise);

/// What the logs of a candidate tell.
struct LogFindings {
  /// They are those of flips, then of items that are not the same to the last bit, 20 in all.
  std::vector<vitrine::ReportedParting> partings;
  std::optional<vitrine::DeviationCell> first;  ///< by the means over all items
};
/// Compares the logs of a candidate, by its number, with the baseline's.
LogFindings compare_logs(const LogFolders& folders, size_t candidate,
                         const vitrine::Evaluation& baseline, const vitrine::Evaluation& evaluation,
                         const vitrine::EvaluationComparison& comparison,
                         const vitrine::DeviationProfile& noise);

}  // namespace cli
