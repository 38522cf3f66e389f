// SPDX-License-Identifier: Apache-2.0
// What adapters add on the reference path: y += scale * b (a x), each for its own tokens.
#pragma once

#include <string>

#include "backend_torch/reference.h"

namespace vitrine::backend_torch {

/// Adds to `out` [tokens, rows] what the step's adapters make of `x` [tokens, cols].
void add_low_rank(ReferenceStep& step, const at::Tensor& x, const std::string& module,
                  double multiplier, at::Tensor& out);
/// A SwiGLU block's hidden rows, silu(gate x) * (up x), and what down makes of them, each with what
/// adapters add.
struct FeedForwardRows {
  at::Tensor hidden, out;
};
FeedForwardRows adapted_feed_forward(ReferenceStep& step, const at::Tensor& x,
                                     const std::string& gate, const std::string& up,
                                     const std::string& down, int64_t width, int64_t intermediate);

}  // namespace vitrine::backend_torch
