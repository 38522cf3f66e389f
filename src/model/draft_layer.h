// SPDX-License-Identifier: Apache-2.0
// The layer that a checkpoint brings for drafts alone (multi-token prediction, MTP; DeepSeek-V3,
// 2024): a decoder layer of the model's kind behind all others, which reads what left the last of
// these at a token and the embedding of the token behind it.
#pragma once

#include <string>

#include "ops/graph.h"
#include "vitrine/checkpoint.h"

namespace vitrine::model {

struct DraftLayer {
  ModelConfig config;  // of a model of one layer
  ops::Graph graph;    // begins with rows that it is given (ops::takes_rows)
};

/// How many such layers guess, one behind another. Of Qwen's families it is the first alone.
int num_draft_layers(const ModelConfig& config);

/// Returns whether build_draft_layer() can build that one.
bool has_draft_layer(const Checkpoint& checkpoint, const ModelConfig& config, int index);

/// Builds one of such layers, counted from 0. `config` is the whole model's. Throws kUnsupported
/// for another family, kInvalidArgument for a checkpoint without one.
DraftLayer build_draft_layer(const Checkpoint& checkpoint, const ModelConfig& config,
                             int index = 0);

/// Whether further drafts begin with what the head of the layer reads (Qwen3-Next), and not with
/// what left the layer (DeepSeek-V3).
bool feeds_normed_rows(const ModelConfig& config);

/// The name of the weight of the norm behind the model's last layer, for find_named_vector().
std::string final_norm_of(const ModelConfig& config);

}  // namespace vitrine::model
