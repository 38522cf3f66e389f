// SPDX-License-Identifier: Apache-2.0
// A federation's shares in the terminal.
#pragma once

#include <string>
#include <vector>

#include "audit_run.h"

namespace cli {

/// What each specialist did over a run's generated tokens.
struct SpecialistTotals {
  std::vector<double> shares;   ///< sums
  std::vector<size_t> leading;  ///< tokens whose largest share was its own
  size_t tokens = 0;
  size_t left_out = 0;  ///< predictions whose shares were left out or could not be opened
  size_t told = 0;      ///< … and whose were there
  double largest_residual = 0;
};
SpecialistTotals specialist_totals(const Run& run);
/// False where the log hides them.
bool has_told_shares(const Run& run, const SpecialistTotals& totals);

/// The specialist with the largest share; -1 where there is none. Of a product, whose shares are
/// terms, the one with the largest weight times probability.
int leading_specialist(const Run& run, const vitrine::PredictionRecord& prediction);

/// Combiner, then one line a specialist with its totals; empty for a single model.
std::string federation_lines(const Run& run);
/// " scripture 62% science 30% …".
std::string share_text(const Run& run, const vitrine::PredictionRecord& prediction);
/// Colour of the leading specialist.
std::string leader_colour(const Run& run, const vitrine::PredictionRecord& prediction,
                          const Colours& colours);
/// What a specialist's own logit comes to in the joint.
std::string logit_text(const Run& run, const vitrine::SpecialistShare& share, float logit);
/// Every number of one token.
std::string shares_text(const Run& run, const vitrine::PredictionRecord& prediction,
                        const Colours& colours);

}  // namespace cli
