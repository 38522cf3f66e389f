// SPDX-License-Identifier: Apache-2.0
// What the attentions of the reference path do with heads of queries and keys.
#pragma once

#include <ATen/ATen.h>

namespace vitrine::backend_torch {

/// RMSNorm over the last dimension.
at::Tensor norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps);
/// The same without a weight.
at::Tensor norm_rows(const at::Tensor& x, double eps);

/// The first `rotary_dim` elements of x [tokens, heads, width] are rotated by cos and sin
/// [tokens, 1, rotary_dim / 2]: neighbours, or halves.
at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                  int64_t rotary_dim, bool rotates_neighbours);

/// Rounds to kI16's integers and widens them: [tokens, heads, head_dim].
at::Tensor round_heads(const at::Tensor& x);

}  // namespace vitrine::backend_torch
