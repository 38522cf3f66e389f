// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/branch_bits.h"

#include <cstddef>

#include "kernels/cuda/kv/rope_kv.h"

namespace vitrine::backend_cuda {

using kernels::cuda::kBranchWords;

void write_branch_bits(const engine::StepBatch& batch, const int32_t* span_of_token,
                       uint32_t* bits) {
  for (const ops::KvCopy& copy : batch.kv_copies) {
    const size_t first = static_cast<size_t>(span_of_token[copy.token]) + 1;
    size_t bit = 0;
    while (batch.spans[first + bit].block_table != copy.block_table) ++bit;
    bits[static_cast<size_t>(copy.token) * kBranchWords + bit / 32] |= uint32_t{1} << bit % 32;
  }
}

}  // namespace vitrine::backend_cuda
