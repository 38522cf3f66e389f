// SPDX-License-Identifier: Apache-2.0
// Private to the library: what a folder asks of the int8 activations that its integers meet.
#pragma once

#include <optional>
#include <string>

#include "fields.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// Reads `input_activations` of compressed-tensors beside weights of `scheme`: kDynamic and kStatic
/// where these are int8, symmetric, and have one scale for a token or for all of them; else kFloat,
/// which is nothing.
ActivationUse read_activation_use(const Fields& activations, const QuantizedModule& scheme);

/// Sets what the module's activations are, and reads {base}.input_scale where they have that.
/// Nothing is set of columns in an order of their own, of rows that are no integers, and of experts
/// in one tensor without such a tensor each. Throws kBadFile for a scale that is missing, of
/// another shape, or not a positive number.
void read_input_scale(const Checkpoint& checkpoint, const std::string& base, ActivationUse use,
                      QuantizedTensors& tensors);

/// Makes one rule of a gate's and an up's, which multiply the same int8 rows: the larger of their
/// scales, as vLLM has it, and nothing where the two ask for different things.
void match_input_scales(QuantizedTensors& tensors, const std::optional<QuantizedTensors>& partner);

}  // namespace vitrine::checkpoint
