// SPDX-License-Identifier: Apache-2.0
// A JSON log, or an export of a sealed one, as a run.
#pragma once

#include "audit_run.h"

namespace cli {

/// Reads the file at `run.path`, schema vitrine.audit/1, into what audit_run.h says. What cannot be
/// read is refused; what contradicts itself is read, and named in `run.problem`.
void read_json(Run& run);

}  // namespace cli
