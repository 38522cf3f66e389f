// SPDX-License-Identifier: Apache-2.0
// Says in words what a log tells of guesses.
#pragma once

#include <string>

#include "audit_run.h"

namespace cli {

/// A line for each drafter: what it guessed in all; empty where the log has no guess.
std::string drafts_text(const Run& run);

/// The guesses for the token at a position, a line for each pass and depth; empty where there was
/// none.
std::string drafts_text_at(const Run& run, int64_t position);

}  // namespace cli
