// SPDX-License-Identifier: Apache-2.0
// This says which branches of drafts see a token, as the kernel that writes keys and values reads
// it.
#pragma once

#include <cstdint>

#include "engine/run/executor.h"

namespace vitrine::backend_cuda {

/// Sets bits of `bits` [tokens, kBranchWords], which are 0 before (RopeKv::branches).
/// `span_of_token`: [tokens] the batch's span that each one is in, whose row of the tables that is.
/// Expects the branches of a tree behind the span that they leave.
void write_branch_bits(const engine::StepBatch& batch, const int32_t* span_of_token,
                       uint32_t* bits);

}  // namespace vitrine::backend_cuda
