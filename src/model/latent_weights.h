// SPDX-License-Identifier: Apache-2.0
// The matrix that makes keys and values of a latent (kv_b), in the halves that absorbed attention
// multiplies with.
#pragma once

#include <cstddef>
#include <optional>

#include "model/stored_matrix.h"
#include "ops/plan.h"
#include "vitrine/checkpoint.h"

namespace vitrine::model {

/// Both halves as the checkpoint has them, where it has them apart in blocks that widened products
/// take (kernels/cpu/widened_products.h).
struct LatentBlocks {
  StoredMatrix keys, values;
};
/// Finds such halves; nothing where one is in another form. Throws kBadFile for other shapes.
std::optional<LatentBlocks> find_latent_blocks(const Checkpoint& checkpoint,
                                               const ops::LatentModule& module);

/// Makes the handles of both halves as floats, without memory: BF16 or F16 where the checkpoint has
/// the matrix so, else F32, which holds every quantized number exactly. Throws kBadFile for a
/// missing tensor.
ops::LatentWeights find_latent_weights(const Checkpoint& checkpoint,
                                       const ops::LatentModule& module);
/// Reads the matrix and writes the halves to memory of these sizes. Throws kIo, and kBadFile for
/// another shape.
void read_latent_weights(const Checkpoint& checkpoint, const ops::LatentModule& module,
                         const ops::LatentWeights& weights, std::byte* keys, std::byte* values);

}  // namespace vitrine::model
