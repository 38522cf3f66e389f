// SPDX-License-Identifier: Apache-2.0
// Private to the room: modules of 4-bit floats that become blocks as a folder is opened.
#pragma once

#include <string>
#include <vector>

#include "quantization_config.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// Makes `info` a matrix [rows, blocks * 32] in blocks of MXFP4 whose numbers, 16 bytes a block,
/// and scales lie apart: its row r is row `first_row` + r * `step` of both tensors.
void place_mxfp4_blocks(const TensorInfo& numbers, const TensorInfo& scales, int64_t first_row,
                        int64_t step, int64_t rows, int64_t blocks, TensorInfo& info);

/// Puts one tensor `{base}.weight` in blocks of MXFP4 in the place of a module's
/// `{base}.weight_packed` U8 [rows, columns / 2] and `{base}.weight_scale` U8 [rows, columns / 32]:
/// the kernels' own layout. `paths` are the files. Throws kBadFile where the two do not fit.
std::vector<TensorInfo> place_mxfp4_modules(std::vector<TensorInfo> tensors,
                                            const QuantizationConfig& config,
                                            const std::vector<std::string>& paths);

}  // namespace vitrine::checkpoint
