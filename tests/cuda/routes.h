// SPDX-License-Identifier: Apache-2.0
// Where a router under test writes to.
#pragma once

#include "kernels/cuda/router/router.h"
#include "tests/cuda/cuda_test_util.h"

namespace vitrine::kernels::cuda::testing {

struct Routes {
  Routes(int32_t tokens, int32_t n, int32_t k)
      : ids(static_cast<size_t>(tokens * k)),
        weights(static_cast<size_t>(tokens * k)),
        probs(static_cast<size_t>(tokens * n)),
        stride(4 * k + n + 3),
        records(static_cast<size_t>(tokens * stride)) {}
  DeviceArray<int32_t> ids;
  DeviceArray<float> weights;
  DeviceArray<float> probs;
  int64_t stride;
  /// [tokens, stride]: a word, ids, weights, a word, probs, scores and their keys, a word
  DeviceArray<int32_t> records;

  Router ask(const DeviceArray<float>& logits, int32_t n, int32_t k) {
    auto* floats = reinterpret_cast<float*>(records.data());
    return {.num_experts = n,
            .top_k = k,
            .logits = logits.data(),
            .ids = ids.data(),
            .weights = weights.data(),
            .probs = probs.data(),
            .record_stride = stride,
            .record_ids = records.data() + 1,
            .record_weights = floats + 1 + k,
            .record_probs = floats + 2 + 2 * k,
            .record_scores = floats + 2 + 2 * k + n};
  }
};

}  // namespace vitrine::kernels::cuda::testing
