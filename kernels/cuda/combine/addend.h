// SPDX-License-Identifier: Apache-2.0
// How an Addend is added, four elements a thread: alone (combine.cu) or ahead of a norm
// (rms_norm.cu).
#pragma once

#include "kernels/cuda/combine/combine.h"
#include "kernels/cuda/reduce.h"

namespace vitrine::kernels::cuda {

/// Null, or why an addend cannot be added.
inline const char* why_bad_addend(const Addend& addend) {
  switch (addend.kind) {
    case Addend::Kind::kNone: return nullptr;
    case Addend::Kind::kScaled: return addend.x == nullptr ? "an addend without x" : nullptr;
    case Addend::Kind::kExperts:
      if (addend.slots == nullptr || addend.weights == nullptr) {
        return "an addend of experts without slots or weights";
      }
      return addend.top_k < 1 ? "an addend's top_k, expected at least 1" : nullptr;
  }
  return "an addend's kind";
}

/// Whether every row of the addend's begins where 16 bytes may be read.
inline bool is_whole(int64_t n, const Addend& addend) {
  return is_whole(n, addend.x) && is_whole(n, addend.slots) && is_whole(n, addend.shared);
}

/// Elements [i, i + 4) of a token's row: residual = residual + what the addend says.
template <Addend::Kind kKind>
VITRINE_DEVICE void add_addend(const Addend& addend, int64_t token, int64_t i, int64_t n,
                               bool whole, float (&residual)[kVector]) {
  if constexpr (kKind == Addend::Kind::kScaled) {
    float x[kVector];
    load_floats(addend.x + token * n, i, n, whole, x);
#pragma unroll
    for (int j = 0; j < kVector; ++j) residual[j] = residual[j] + addend.multiplier * x[j];
  } else if constexpr (kKind == Addend::Kind::kExperts) {
    constexpr int kAhead = 8;  // slots whose rows are under way at once
    float sum[kVector] = {};
    for (int32_t first = 0; first < addend.top_k; first += kAhead) {
      float x[kAhead][kVector], weights[kAhead];
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        if (first + s >= addend.top_k) break;
        const int64_t route = token * addend.top_k + first + s;
        const int64_t row = addend.slot_rows != nullptr ? addend.slot_rows[route] : route;
        weights[s] = addend.weights[route];
        load_floats(addend.slots + row * n, i, n, whole, x[s]);
      }
#pragma unroll
      for (int s = 0; s < kAhead; ++s) {
        if (first + s >= addend.top_k) break;
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const float product = weights[s] * x[s][j];
          sum[j] = first + s == 0 ? product : sum[j] + product;
        }
      }
    }
    if (addend.shared != nullptr) {
      const float weight =
          addend.shared_gate != nullptr ? sigmoid(addend.shared_gate[token]) : 1.0f;
      if (i == 0 && addend.shared_weights != nullptr) addend.shared_weights[token] = weight;
      float x[kVector];
      load_floats(addend.shared + token * n, i, n, whole, x);
#pragma unroll
      for (int j = 0; j < kVector; ++j) sum[j] = sum[j] + weight * x[j];
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j) residual[j] = residual[j] + addend.multiplier * sum[j];
  }
}

}  // namespace vitrine::kernels::cuda
