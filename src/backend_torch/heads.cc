// SPDX-License-Identifier: Apache-2.0
#include "backend_torch/heads.h"

#include "kernels/cpu/cpu_kernels.h"

namespace vitrine::backend_torch {

at::Tensor norm_rows(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return norm_rows(x, eps).mul(weight);
}

at::Tensor norm_rows(const at::Tensor& x, double eps) {
  return x.mul(x.mul(x).mean(-1, true).add(eps).rsqrt());
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                  int64_t rotary_dim, bool rotates_neighbours) {
  const int64_t half = rotary_dim / 2, rest = x.size(-1) - rotary_dim;
  if (half == 0) return x;
  const at::Tensor turned = x.narrow(-1, 0, rotary_dim);
  const at::Tensor pairs = rotates_neighbours ? turned.unflatten(-1, {half, 2}).transpose(-1, -2)
                                              : turned.unflatten(-1, {2, half});
  const at::Tensor low = pairs.select(-2, 0), high = pairs.select(-2, 1);
  const at::Tensor first = low.mul(cos).sub(high.mul(sin));
  const at::Tensor second = high.mul(cos).add(low.mul(sin));
  const at::Tensor rotated = rotates_neighbours ? at::stack({first, second}, -1).flatten(-2)
                                                : at::cat({first, second}, -1);
  return rest == 0 ? rotated : at::cat({rotated, x.narrow(-1, rotary_dim, rest)}, -1);
}

at::Tensor round_heads(const at::Tensor& x) {
  const double largest = kernels::largest_kv_number(static_cast<int32_t>(x.size(-1)));
  const at::Tensor magnitude = x.abs().amax(-1, true);
  const at::Tensor factor = magnitude.reciprocal().mul(largest);
  const at::Tensor rounded = x.mul(factor).round().mul(magnitude.div(largest));
  return at::where(factor.isinf(), at::zeros_like(x), rounded);
}

}  // namespace vitrine::backend_torch
