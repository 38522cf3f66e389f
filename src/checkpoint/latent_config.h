// SPDX-License-Identifier: Apache-2.0
// The part of config.json that says what latent attention (MLA; DeepSeek-V2, 2024) is made of.
#pragma once

#include "fields.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// By the config's model_type.
bool has_latent_attention(const ModelConfig& config);
/// Reads it in place of heads, their width and biases; num_heads is set. Throws kBadFile, and
/// kUnsupported.
void read_latent(const Fields& fields, ModelConfig& config);
/// Behind the router's own fields, of which the family may not use all. Throws kUnsupported for
/// another way of choosing experts than the family's.
void check_routing(const Fields& fields, ModelConfig& config);

}  // namespace vitrine::checkpoint
