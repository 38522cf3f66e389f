// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "vitrine/speculate.h"

namespace vitrine {

double SpeculationCounts::mean_acceptance_length() const {
  if (num_spec_steps == 0) return 0;
  return 1 + static_cast<double>(num_accepted_draft_tokens) / static_cast<double>(num_spec_steps);
}

double SpeculationCounts::draft_acceptance_rate() const {
  if (num_draft_tokens == 0) return 0;
  return static_cast<double>(num_accepted_draft_tokens) / static_cast<double>(num_draft_tokens);
}

SpeculationCounts& SpeculationCounts::operator+=(const SpeculationCounts& other) {
  if (drafter.empty()) drafter = other.drafter;
  if (problem.empty()) problem = other.problem;
  num_passes += other.num_passes;
  num_spec_steps += other.num_spec_steps;
  num_draft_tokens += other.num_draft_tokens;
  num_accepted_draft_tokens += other.num_accepted_draft_tokens;
  num_rejected_passes += other.num_rejected_passes;
  num_discarded_tokens += other.num_discarded_tokens;
  num_paused_passes += other.num_paused_passes;
  num_replaced_draft_tokens += other.num_replaced_draft_tokens;
  acceptance_histogram.resize(
      std::max(acceptance_histogram.size(), other.acceptance_histogram.size()));
  for (size_t i = 0; i < other.acceptance_histogram.size(); ++i) {
    acceptance_histogram[i] += other.acceptance_histogram[i];
  }
  draft_seconds += other.draft_seconds;
  verify_seconds += other.verify_seconds;
  rejected_seconds += other.rejected_seconds;
  // One drafter makes the guesses of all answers that are added.
  memory.weight_bytes = std::max(memory.weight_bytes, other.memory.weight_bytes);
  memory.kv_bytes = std::max(memory.kv_bytes, other.memory.kv_bytes);
  memory.index_bytes = std::max(memory.index_bytes, other.memory.index_bytes);
  return *this;
}

}  // namespace vitrine
