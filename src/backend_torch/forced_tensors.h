// SPDX-License-Identifier: Apache-2.0
// Routes that a step's input gives in place of the router's, as tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "vitrine/engine.h"

namespace vitrine::backend_torch {

/// By layer [tokens, top_k], -1 where nothing is forced. `routes` have been checked.
void force_routes(const AuditLayout& layout,
                  const std::vector<std::span<const ForcedRoute>>& routes, at::Device device,
                  std::vector<at::Tensor>& ids, std::vector<at::Tensor>& weights);

}  // namespace vitrine::backend_torch
