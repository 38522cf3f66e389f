// SPDX-License-Identifier: Apache-2.0
// Texts of a file of `vitrine calibrate`, for a model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vitrine/checkpoint.h"

namespace cli {

/// Reads them. Throws what read_calibration throws, and kInvalidArgument where the ids are another
/// tokenizer's.
std::vector<std::vector<int32_t>> read_calibration_texts(const std::string& path,
                                                         const vitrine::Checkpoint& checkpoint);

}  // namespace cli
