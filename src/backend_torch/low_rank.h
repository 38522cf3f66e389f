// SPDX-License-Identifier: Apache-2.0
// What adapters add on the reference path: y += scale * b (a x), each for its own tokens.
#pragma once

#include <string>

#include "backend_torch/reference.h"
#include "kernels/cpu/cpu_kernels.h"

namespace vitrine::backend_torch {

/// Adds to `out` [tokens, rows] what the step's adapters make of `x` [tokens, cols].
void add_low_rank(ReferenceStep& step, const at::Tensor& x, const std::string& module,
                  double multiplier, at::Tensor& out);
/// A feed-forward block by its modules.
struct FeedForwardModules {
  std::string gate, up, down;
  int64_t width = 0, intermediate = 0;
  bool has_biases = false;
  kernels::Gating gating = {};
};

/// A block's hidden rows and what down makes of them, each with what adapters add.
struct FeedForwardRows {
  at::Tensor hidden, out;
};
FeedForwardRows adapted_feed_forward(ReferenceStep& step, const at::Tensor& x,
                                     const FeedForwardModules& modules);

}  // namespace vitrine::backend_torch
