// SPDX-License-Identifier: Apache-2.0
// Folders of heads.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "vitrine/checkpoint.h"

namespace vitrine::draft_heads {

/// Opens one. Throws kUnsupported for pickles, naming the command that converts them, else as
/// Checkpoint::open does.
Checkpoint open_heads(const std::string& folder);

/// Whether the folder has a module's matrix, as floats or quantized.
bool has_matrix(const Checkpoint& heads, const std::string& module);

/// Reads a tensor I64 [count] of tokens of a vocabulary, by what the heads choose. `offsets`: each
/// holds how far the token is from its own place. Throws kBadFile for another type, another length,
/// and a token that the vocabulary does not have; kIo.
std::vector<int32_t> read_tokens(const Checkpoint& heads, std::string_view name, int64_t count,
                                 int64_t vocabulary, bool offsets);

/// "[3, 5]".
std::string extents_text(const std::vector<int64_t>& shape);

}  // namespace vitrine::draft_heads
