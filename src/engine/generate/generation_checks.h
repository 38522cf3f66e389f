// SPDX-License-Identifier: Apache-2.0
// Checks of what an answer is asked for with.
#pragma once

#include <span>

#include "vitrine/generate.h"

namespace vitrine::engine {

/// Throws kInvalidArgument for options out of range, and a prompt that does not fit behind `held`
/// tokens.
void check_generation(const Stepper& stepper, std::span<const int32_t> prompt, int64_t held,
                      const GenerateOptions& options);

}  // namespace vitrine::engine
