// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/combine/combine.h"

#include "kernels/cuda/combine/addend.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Bytes: 4 * n * (2 + rows added) a token: the residual is read and written, each row read once.
template <Addend::Kind kKind>
VITRINE_KERNEL(kThreads)
void add_to_residual_kernel(Addend addend, int64_t n, bool whole, float* residual) {
  const int64_t token = block_x();
  const int64_t i = (static_cast<int64_t>(block_y()) * kThreads + thread_index()) * kVector;
  if (i >= n) return;
  float* row = residual + token * n;
  float values[kVector];
  load_floats(row, i, n, whole, values);
  add_addend<kKind>(addend, token, i, n, whole, values);
  store_floats(row, i, n, whole, values);
}

}  // namespace

Status add_to_residual(const Addend& addend, int32_t tokens, int64_t n, float* residual,
                       Stream stream) {
  if (tokens < 1 || n < 1) return refuse("add_to_residual: tokens and n, expected at least 1");
  if (const char* why = why_bad_addend(addend)) return refuse(why);
  const bool whole = is_whole(n, residual) && is_whole(n, addend);
  const Dim3 grid{static_cast<uint32_t>(tokens),
                  static_cast<uint32_t>(divide_up<int64_t>(n, kThreads * kVector))};
  if (addend.kind == Addend::Kind::kScaled) {
    return launch(add_to_residual_kernel<Addend::Kind::kScaled>, grid, kThreads, 0, stream, addend,
                  n, whole, residual);
  }
  if (addend.kind == Addend::Kind::kExperts) {
    return launch(add_to_residual_kernel<Addend::Kind::kExperts>, grid, kThreads, 0, stream, addend,
                  n, whole, residual);
  }
  return refuse("add_to_residual: an addend of kind none");
}

}  // namespace vitrine::kernels::cuda
