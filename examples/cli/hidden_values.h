// SPDX-License-Identifier: Apache-2.0
// What a reader of a log cannot see: columns that were left out or are encrypted.
#pragma once

#include "audit_run.h"

namespace cli {

/// A prediction of the log was, or may have been where the log has no end that counts them.
bool hides_predictions(const Run& run);
/// The record has no prediction, and that may be why.
bool may_hide_prediction(const Run& run, size_t index);
/// Records that chose a token, and that score the prompt: as a whole log says, whether or not they
/// can be read.
std::pair<uint64_t, uint64_t> counted_predictions(const Run& run);
/// Records whose experts of a layer cannot be read.
size_t num_hidden_routes(const Run& run, size_t layer);
/// Level counters: pages' counters were.
bool hides_counters(const Run& run);

}  // namespace cli
