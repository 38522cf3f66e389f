// SPDX-License-Identifier: Apache-2.0
// The kernels of layers with a state (Gated DeltaNet, short convolutions) and of attention with an
// output gate, a set for each instruction set; docs/numerics.md says what they compute, to the bit.
#pragma once

#include "cpu_kernels.h"

namespace vitrine::kernels {

/// Columns of a head's state that are walked together, and lie together.
inline constexpr int kDeltaColumns = 16;

/// A run of tokens of one sequence through a tile of one head's state (Gated DeltaNet). Per token:
/// S[d] = decay * S[d]; u = sum over d of S[d] * key[d]; delta = beta * (value - u); S[d] =
/// fma(key[d], delta, S[d]); out = sum over d of S[d] * query[d]. Sums in eight chains.
struct DeltaSpan {
  float* state = nullptr;  // [key_dim, kDeltaColumns], updated
  int32_t key_dim = 0;
  int32_t columns = 0;  // 1 … kDeltaColumns: those of value and out
  int32_t tokens = 0;
  // Pointers are to the first token's numbers; strides are floats from token to token.
  const float* query = nullptr;  // [key_dim]
  const float* key = nullptr;    // [key_dim]
  const float* value = nullptr;  // [columns]
  const float* decay = nullptr;  // one number
  const float* beta = nullptr;   // one number
  float* out = nullptr;          // [columns]; null: the state alone is wanted
  int64_t query_stride = 0, key_stride = 0, value_stride = 0, gate_stride = 0, out_stride = 0;
};

/// What Gated DeltaNet, short convolutions and gated attention compute.
struct DeltaKernels {
  /// out[i] = silu(sum over j of weights[j * weight_stride + i] * inputs[j][i]), j ascending, fma
  /// from +0. inputs: [taps] rows.
  void (*convolve)(const float* const* inputs, const float* weights, int64_t weight_stride,
                   int32_t taps, int64_t n, float* out);
  /// decay[i] = exp(rate[i] * softplus(a[i] + bias[i])); beta[i] = sigmoid(b[i]).
  void (*gates)(const float* a, const float* b, const float* bias, const float* rate, int64_t n,
                float* decay, float* beta);
  /// x[i] = (x[i] * (1 / sqrt(sum of squares + eps))) * scale, in place.
  void (*l2_norm)(float* x, float eps, float scale, int64_t n);
  /// values[i] *= silu(gate[i]).
  void (*multiply_silu)(const float* gate, int64_t n, float* values);
  /// values[i] *= sigmoid(gate[i]).
  void (*multiply_sigmoid)(const float* gate, int64_t n, float* values);
  void (*run)(const DeltaSpan& span);
  /// out[i] = gate[i] * (bias[i] + sum over j of weights[j * weight_stride + i] * inputs[j][i]), j
  /// ascending, fma from +0; bias may be null. inputs: [taps] rows.
  void (*gated_convolve)(const float* const* inputs, const float* weights, int64_t weight_stride,
                         int32_t taps, const float* bias, const float* gate, int64_t n, float* out);
};

/// Those of a table's instruction set.
const DeltaKernels& delta_kernels(const CpuKernels& table);

namespace portable {
extern const DeltaKernels kDeltaKernels;
}
namespace avx2 {
extern const DeltaKernels kDeltaKernels;
}
namespace avx512 {
extern const DeltaKernels kDeltaKernels;
}

}  // namespace vitrine::kernels
