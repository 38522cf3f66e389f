// SPDX-License-Identifier: Apache-2.0
#include "backend_torch/reference.h"

namespace vitrine::backend_torch {

namespace {

// What the fused path does to the input of a quantized matrix: int8 per token and group.
at::Tensor fake_quantize(const at::Tensor& x, int64_t group_size) {
  // Zeros behind the last column change no group's maximum.
  const int64_t missing = (group_size - x.size(1) % group_size) % group_size;
  const at::Tensor padded = missing > 0 ? at::constant_pad_nd(x, {0, missing}) : x;
  at::Tensor groups = padded.reshape({x.size(0), padded.size(1) / group_size, group_size});
  at::Tensor largest = groups.abs().amax(-1, /*keepdim=*/true);
  // An all-zero group divides zero by a positive number instead of by zero; 127 over it is finite.
  at::Tensor inverse = at::full({}, 127.0, x.options()).div(largest.clamp_min(3.8e-37));
  const at::Tensor quantized = groups.mul(inverse).round().mul(largest.div(127.0));
  return quantized.reshape(padded.sizes()).narrow(1, 0, x.size(1));
}

}  // namespace

at::Tensor ReferenceStep::linear(const at::Tensor& x, const std::string& module, int64_t rows,
                                 const std::string& bias) {
  const at::Tensor& weight = weights->matrix(module, rows, x.size(1));
  const int64_t group_size = weights->group_size(module);
  at::Tensor out =
      at::matmul(group_size > 0 ? fake_quantize(x, group_size) : x, weight.transpose(0, 1));
  return bias.empty() ? out : out.add(weights->vector(bias, rows));
}

}  // namespace vitrine::backend_torch
