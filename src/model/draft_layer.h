// SPDX-License-Identifier: Apache-2.0
// The layer that a checkpoint brings for drafts alone (multi-token prediction, MTP; DeepSeek-V3,
// 2024): a decoder layer of the model's kind behind all others, which reads what left the last of
// these at a token and the embedding of the token behind it.
#pragma once

#include <string>

#include "checkpoint/model_config.h"
#include "ops/graph.h"

namespace vitrine::model {

struct DraftLayer {
  ModelConfig config;  // of a model of one layer
  ops::Graph graph;    // begins with rows that it is given (ops::takes_rows)
};

/// Returns how many such layers guess, one behind another.
int num_draft_layers(const ModelConfig& config);

/// Returns whether build_draft_layer() can build that one.
bool has_draft_layer(const Checkpoint& checkpoint, const ModelConfig& config, int index);

/// Builds one of such layers, counted from 0. `config` is the whole model's. Throws kUnsupported
/// for another family, kInvalidArgument for a checkpoint without one.
DraftLayer build_draft_layer(const Checkpoint& checkpoint, const ModelConfig& config,
                             int index = 0);

/// Returns whether further drafts begin with what the head of the layer reads (DraftLayers::kQwen),
/// and not with what left the layer.
bool feeds_normed_rows(const ModelConfig& config);

/// Returns the name of the weight of the norm behind the model's last layer, for
/// find_named_vector().
std::string final_norm_of(const ModelConfig& config);

}  // namespace vitrine::model
