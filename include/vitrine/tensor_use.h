// SPDX-License-Identifier: Apache-2.0
// The room `checkpoint`: what a model does with the tensors of its files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "vitrine/core.h"

namespace vitrine {

/// A number of tensors as Checkpoint::tensors() lists them, each expert's by themselves.
struct TensorCount {
  int64_t tensors = 0;  ///< how many
  uint64_t bytes = 0;   ///< in the files
};

/// Tensors that a model runs without, as its publisher's own code does.
struct UnneededTensors {
  std::string purpose;  ///< "vision and audio", "drafting", …
  TensorCount count;    ///< how many there are
};

/// All of a checkpoint's tensors, each once.
struct TensorUse {
  TensorCount used;                         ///< tensors that the model computes with
  std::vector<UnneededTensors> not_needed;  ///< tensors that it runs without, by purpose
  TensorCount unused;                       ///< tensors that nothing in the config asks for
  std::vector<std::string> unused_names;    ///< their names in the files, a fused tensor's once
};

}  // namespace vitrine
