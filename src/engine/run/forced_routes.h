// SPDX-License-Identifier: Apache-2.0
// Routes that a step's input gives in place of the router's.
#pragma once

#include <span>
#include <vector>

#include "vitrine/engine.h"

namespace vitrine::engine {

/// Throws kInvalidArgument where the input's routes do not fit its tokens or the model's layers.
void check_forced_routes(const AuditLayout& layout, const StepInput& input);

/// Appends each token's part of the input's routes, which have been checked.
void append_by_token(const StepInput& input, std::vector<std::span<const ForcedRoute>>& routes);

}  // namespace vitrine::engine
