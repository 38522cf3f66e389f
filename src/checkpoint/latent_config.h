// SPDX-License-Identifier: Apache-2.0
// Readers of the config.json of models with latent attention (MLA; DeepSeek-V2, 2024). They throw
// kBadFile, and kUnsupported, naming the field.
#pragma once

#include <initializer_list>
#include <string_view>

#include "fields.h"
#include "model_config.h"

namespace vitrine::checkpoint {

/// Reads heads, the widths of their parts and the latents' ranks.
void read_latent_heads(const Fields& fields, ModelConfig& config);
/// Refuses another scoring of experts than `scoring`, and other methods of their choice than
/// `methods`, where the config names them. Does nothing for a model without experts.
void check_routing(const Fields& fields, const ModelConfig& config, std::string_view scoring,
                   std::initializer_list<std::string_view> methods);
/// Reads a model of DeepSeek-V3's kind: latent attention, and experts by corrected scores.
void read_latent_config(const Fields& fields, ModelConfig& config);

}  // namespace vitrine::checkpoint
