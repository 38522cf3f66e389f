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

/// What noise does, by the logs of the noise's evaluations; empty where there are none.
vitrine::NoiseLevels noise_levels(const LogFolders& folders, const vitrine::Evaluation& baseline,
                                  const std::vector<vitrine::Evaluation>& noise);

/// Where the logs of flips part, those of a candidate by its number; then those of items that are
/// not the same to the last bit, until there are 20.
std::vector<vitrine::ReportedParting> find_partings(const LogFolders& folders, size_t candidate,
                                                    const vitrine::Evaluation& baseline,
                                                    const vitrine::Evaluation& evaluation,
                                                    const vitrine::EvaluationComparison& comparison,
                                                    const vitrine::NoiseLevels& noise);

}  // namespace cli
