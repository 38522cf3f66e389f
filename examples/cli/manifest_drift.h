// SPDX-License-Identifier: Apache-2.0
// vitrine manifest drift: whether live routing is still what a calibration saw.
#pragma once

#include "common.h"

namespace cli {

/// Adds the command to those of `manifest`.
void add_manifest_drift(CLI::App& manifest, Command& command);

}  // namespace cli
