// SPDX-License-Identifier: Apache-2.0
// What the config of EAGLE-3 and P-EAGLE heads says, whoever wrote it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "draft_heads/head_kind.h"

namespace vitrine::draft_heads {

struct EagleConfig {
  ModelConfig layer;  // of the heads' own decoder layers
  bool query_key_norm = false;
  int64_t draft_vocabulary = 0;
  bool norm_before_residual = false;  // what is added to is normed, too
  bool norm_before_fc = false;        // one norm over all features
  bool fc_norm = false;               // one norm for each layer's
  bool norm_output = false;           // what the next guess is made of is normed
  std::vector<int> layers;            // of the model, in the order of fc's columns: as they enter
  int32_t mask_token = -1;            // P-EAGLE
  int32_t trained_guesses = 0;        // P-EAGLE: that they were trained to make at once; 0: unknown
};

/// Throws as make_head_drafter() does.
EagleConfig read_eagle_config(const HeadSources& sources, bool is_parallel);

}  // namespace vitrine::draft_heads
