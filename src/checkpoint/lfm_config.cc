// SPDX-License-Identifier: Apache-2.0
#include "lfm_config.h"

#include <algorithm>
#include <functional>

#include "layer_types.h"

namespace vitrine::checkpoint {

bool is_lfm(const ModelConfig& config) { return config.model_type == "lfm2_moe"; }

void read_convolutions(const Fields& fields, ModelConfig& config) {
  for (const std::string& type : read_layer_types(fields, "layer_types", config.num_layers, "conv",
                                                  "full_attention", /*is_required=*/true)) {
    config.linear_layers.push_back(type == "conv");
  }
  if (std::ranges::all_of(config.linear_layers, std::identity())) {
    fields.unsupported("layer_types", "a layer of 'full_attention' or more");
  }
  constexpr int64_t kMaxTaps = 16;
  const int64_t taps = fields.integer("conv_L_cache", 2, kMaxTaps).value_or(3);
  config.convolution_bias = fields.boolean("conv_bias").value_or(false);
  config.corrects_scores = fields.boolean("use_expert_bias").value_or(true);
  if (std::ranges::none_of(config.linear_layers, std::identity())) {
    config.linear_layers.clear();
  } else {
    config.convolution_taps = taps;
  }
}

}  // namespace vitrine::checkpoint
