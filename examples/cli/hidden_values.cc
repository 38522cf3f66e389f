// SPDX-License-Identifier: Apache-2.0
#include "hidden_values.h"

#include <algorithm>

namespace cli {

namespace {

using vitrine::TokenRecord;
using Seal = vitrine::VtrReport::Seal;

/// What counts all predictions, also those that cannot be read.
bool has_end(const Run& run) {
  return run.report ? run.report->seal == Seal::kComplete : run.stop_reason != "open";
}

}  // namespace

std::pair<uint64_t, uint64_t> counted_predictions(const Run& run) {
  if (!has_end(run)) return readable_predictions(run);
  if (!run.report) return *run.counted;
  return {run.report->counts.generated, run.report->counts.scored};
}

bool hides_predictions(const Run& run) {
  if (std::ranges::find(run.is_redacted, true) == run.is_redacted.end()) return false;
  if (!has_end(run)) return true;
  return counted_predictions(run) != readable_predictions(run);
}

bool may_hide_prediction(const Run& run, size_t index) {
  return is_redacted(run, index) && !run.records[index].has_prediction && hides_predictions(run);
}

size_t num_hidden_routes(const Run& run, size_t layer) {
  if (run.told_tokens > 0) return 0;  // the log's counts tell them
  return static_cast<size_t>(std::ranges::count_if(run.records, [layer](const auto& record) {
    return layer < record.layers.size() &&
           std::ranges::any_of(record.layers[layer].routes,
                               [](const auto& route) { return route.expert < 0; });
  }));
}

bool hides_counters(const Run& run) {
  return run.level == "counters" && run.report &&
         run.report->redacted_groups + run.report->closed_groups > 0;
}

}  // namespace cli
