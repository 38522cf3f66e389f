// SPDX-License-Identifier: Apache-2.0
// Low-rank adapters as float32 tensors on one device, for the reference path.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "model/adapter.h"
#include "ops/reference.h"

namespace vitrine::model {

/// The same on a device of the reference path. Keeps a reference to `adapters`.
class TensorAdapters final : public ops::ReferenceAdapters {
 public:
  TensorAdapters(const LoraAdapters& adapters, at::Device device)
      : adapters_(adapters), device_(device) {}
  const ops::ReferenceLowRank* find(int32_t adapter, const std::string& module) override;

 private:
  const LoraAdapters& adapters_;
  at::Device device_;
  std::map<std::pair<int32_t, std::string>, ops::ReferenceLowRank> tensors_;
};

}  // namespace vitrine::model
