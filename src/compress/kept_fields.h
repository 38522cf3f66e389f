// SPDX-License-Identifier: Apache-2.0
// Private to the room: what the numbers of a calibration's layers hang on.
#pragma once

#include <vector>

#include "documents.h"
#include "kept_layers.h"

namespace vitrine::compress {

/// Returns the library's build, and hashes of the source's files, of the calibration and of the
/// options.
KeptLayers::Fields kept_fields(const Checkpoint& checkpoint, const QuantizeOptions& options,
                               const std::vector<FileRecord>& weight_files);

/// Gives the plan's matrices the widths of a mixture that an earlier run has found, or finds and
/// keeps them. `kept` may be null. Throws what choose_widths() and KeptLayers throw.
void take_widths(const Checkpoint& checkpoint, const std::string& model,
                 const QuantizeOptions& options, double bits, QuantizePlan& plan,
                 const KeptLayers* kept, ProgressTeller& progress);

}  // namespace vitrine::compress
