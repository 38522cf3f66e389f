// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters (Hu et al. 2021) beside the weights of a model: y += scale * b (a x), for the
// tokens of the sequences that use them, while the model's own matrices are read once for all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "ops/graph.h"

namespace vitrine::ops {

/// What an adapter adds to one matrix [rows, cols]. Float formats, in rows or, for the CPU's fused
/// path, in tiles.
struct LowRankMatrix {
  kernels::Weight a;  // [rank, cols]
  kernels::Weight b;  // [rows, rank]
  float scale = 0;    // alpha / rank, or alpha / sqrt(rank)
};

/// The adapters that an engine was loaded with.
class AdapterWeights {
 public:
  virtual ~AdapterWeights() = default;
  virtual int32_t size() const = 0;
  /// The module's matrix of adapter 0 … size() - 1, or null where it leaves that module as it is.
  virtual const LowRankMatrix* find(int32_t adapter, const std::string& module) const = 0;
};

/// The tokens of a step that one adapter works on.
struct AdapterRows {
  int32_t adapter = 0;
  const int32_t* rows = nullptr;  // [count] indices of the step's tokens
  int32_t count = 0;
};

/// The matrices that an adapter can change.
std::vector<OpMatrix> adapter_targets(const Graph& graph);

}  // namespace vitrine::ops
