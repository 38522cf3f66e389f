// SPDX-License-Identifier: Apache-2.0
// How far another model is from a log that it reran.
#pragma once

#include "audit_run.h"

namespace cli {

/// How far another model's rerun is from the log.
struct Drift {
  size_t predictions = 0, same_best = 0;
  double logprob_sum = 0;  // of |difference|
  size_t routes = 0, other_routes = 0;
  double mean_logprob() const {
    return predictions == 0 ? 0 : logprob_sum / static_cast<double>(predictions);
  }
};

/// `again`: what rerun() made of the log.
Drift measure_drift(const Run& run, const std::vector<std::optional<vitrine::TokenRecord>>& again);
nlohmann::ordered_json drift_json(const Drift& drift);
/// `name`: "free" or "forced".
std::string drift_line(const char* name, const Drift& drift);

}  // namespace cli
