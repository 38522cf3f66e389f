// SPDX-License-Identifier: Apache-2.0
// Readers of what the config.json of most decoders says. A family's reader calls those that it has
// use for; read_decoder_config() is the usual one. All throw kBadFile and kUnsupported naming the
// field.
#pragma once

#include "fields.h"
#include "model_config.h"

namespace vitrine::checkpoint {

/// Says whether a layer sees a window alone, in a config that has no `layer_types`.
using SlidingRule = bool (*)(const Fields& fields, const ModelConfig& config, int64_t layer);

/// Returns true where the config has a window.
bool has_window(const Fields& fields);
/// Returns true where it has one and `use_sliding_window` asks for it.
bool asks_for_window(const Fields& fields);
/// Returns `max_window_layers`.
int64_t max_window_layers(const Fields& fields);

/// Reads heads, their width, biases and the scale of attention.
void read_heads(const Fields& fields, ModelConfig& config);
/// Reads which layers see a window: as `layer_types` lists them, else as `slides` says (null: none
/// does). Layers that slide need a `sliding_window`.
void read_windows(const Fields& fields, ModelConfig& config, SlidingRule slides = nullptr);
/// Reads the dense block's width, experts, layers without these, and the router.
void read_feed_forward(const Fields& fields, ModelConfig& config);

/// Reads heads, RoPE, windows and feed-forward blocks. `rotates_part`: the family may rotate a part
/// of each head alone.
void read_decoder(const Fields& fields, ModelConfig& config, SlidingRule slides,
                  bool rotates_part = false);
/// Reads the same of a family whose heads are rotated whole, and whose layers slide only where
/// `layer_types` says so.
void read_decoder_config(const Fields& fields, ModelConfig& config);

}  // namespace vitrine::checkpoint
