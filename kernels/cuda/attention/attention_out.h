// SPDX-License-Identifier: Apache-2.0
// Where a finished element of attention goes.
#pragma once

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device.h"

namespace vitrine::kernels::cuda {

VITRINE_DEVICE void store_attention(const AttentionArguments& a, int64_t at, float value) {
  if (a.out_bf16 != nullptr) {
    a.out_bf16[at] = narrow_bf16(value);
  } else {
    a.out[at] = value;
  }
}

}  // namespace vitrine::kernels::cuda
