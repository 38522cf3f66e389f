// SPDX-License-Identifier: Apache-2.0
// Private to the room: what a result tells of its folded matrices, so that adapters of the source
// can be folded as they are loaded.
#pragma once

#include <string>

#include "folds.h"
#include "model/adapter_folds.h"
#include "vitrine/checkpoint.h"

namespace vitrine::compress {

/// Writes the factors of the matrices into a file of the folder, with those that a folded source
/// has already (`earlier`). Returns its name; empty: no matrix was folded. Throws kIo, and kBadFile
/// where the source's factors are not as many as its matrices have rows and columns.
std::string write_folds(const Checkpoint& source, const model::AdapterFolds& earlier,
                        const Folds& folds, const std::string& folder);

}  // namespace vitrine::compress
