// SPDX-License-Identifier: Apache-2.0
// The matrix that makes keys and values of a latent (kv_b), where the file has its halves apart.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "vitrine/checkpoint.h"

namespace vitrine::model {

struct LatentHalves {
  const TensorInfo* keys = nullptr;    // [heads, latent, key_rows]: each head's, transposed
  const TensorInfo* values = nullptr;  // [heads, value_rows, latent]
};

/// Finds the halves; nothing where the file has no tensor of a first half, or `module` whole.
std::optional<LatentHalves> find_latent_halves(const Checkpoint& checkpoint,
                                               const std::string& module);
/// Reads the whole matrix [rows, cols]: head by head the rows of its key, then of its value. Throws
/// kIo, and kBadFile for other shapes.
std::vector<float> join_latent_halves(const Checkpoint& checkpoint, const LatentHalves& halves,
                                      int64_t rows, int64_t cols);

}  // namespace vitrine::model
