// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters as float32 tensors on one device.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>

#include "ops/adapters.h"

namespace vitrine::backend_torch {

/// A low-rank addition to one matrix.
struct TensorLowRank {
  at::Tensor a;  // [rank, cols]
  at::Tensor b;  // [rows, rank]
  double scale = 0;
};

/// Each is uploaded when a step first asks for it. Keeps a reference to `adapters`.
class TensorAdapters {
 public:
  TensorAdapters(const ops::AdapterWeights& adapters, at::Device device)
      : adapters_(adapters), device_(device) {}
  /// Null where the adapter leaves that module as it is.
  const TensorLowRank* find(int32_t adapter, const std::string& module);

 private:
  const ops::AdapterWeights& adapters_;
  at::Device device_;
  std::map<std::pair<int32_t, std::string>, TensorLowRank> tensors_;
};

}  // namespace vitrine::backend_torch
