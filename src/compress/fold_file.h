// SPDX-License-Identifier: Apache-2.0
// Private to the room: what a result tells of its folded matrices, so that adapters of the source
// can be folded as they are loaded.
#pragma once

#include <string>

#include "folds.h"
#include "vitrine/checkpoint.h"

namespace vitrine::compress {

/// Writes the factors of the matrices into a file of the folder, with those that a folded source
/// has already. Returns its name; empty: no matrix was folded. Throws kIo, and what reading the
/// source's factors throws.
std::string write_folds(const Checkpoint& source, const Folds& folds, const std::string& folder);

}  // namespace vitrine::compress
