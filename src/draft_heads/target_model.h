// SPDX-License-Identifier: Apache-2.0
// The model that heads guess for: what they share with it.
#pragma once

#include <string>

#include "checkpoint/model_config.h"

namespace vitrine::draft_heads {

struct TargetModel {
  Checkpoint checkpoint;
  ModelConfig config;
  // Modules and tensors as model::CheckpointWeights names them.
  std::string embedding;   // [vocabulary, hidden]
  std::string head;        // [vocabulary, hidden]
  std::string final_norm;  // [hidden], before the head; empty: without a weight
  float norm_epsilon = 0;  // of that
};

/// Opens it without its weights. Throws as Checkpoint::open and parse_model_config do.
TargetModel open_target(const std::string& path);

}  // namespace vitrine::draft_heads
