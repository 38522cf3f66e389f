// SPDX-License-Identifier: Apache-2.0
#include "delta_config.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include "config_limits.h"
#include "decoder_config.h"
#include "layer_types.h"
#include "rope_config.h"

namespace vitrine::checkpoint {
namespace {

void read_layer_kinds(const Fields& fields, ModelConfig& config) {
  const std::vector<std::string> types = read_layer_types(fields, "layer_types", config.num_layers,
                                                          "linear_attention", "full_attention");
  if (types.empty()) {
    const int64_t interval = fields.integer("full_attention_interval", 1, kMaxLayers).value_or(4);
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      config.linear_layers.push_back((layer + 1) % interval != 0);
    }
  }
  for (const std::string& type : types) config.linear_layers.push_back(type == "linear_attention");
}

/// Reads what the reader of GGUF files writes; no published config has the field.
LinearLayout read_layout(const Fields& fields, bool may_be_whole) {
  const std::string layout = fields.string("linear_layout").value_or("published");
  if (layout == "published") return LinearLayout::kPublished;
  if (layout == "converted") return LinearLayout::kConverted;
  if (layout == "converted_whole" && may_be_whole) return LinearLayout::kConvertedWhole;
  fields.unsupported("linear_layout",
                     "'published', 'converted' or, of qwen3_next, 'converted_whole'");
}

/// Reads which layers keep a state, and its sizes.
void read_linear_layers(const Fields& fields, ModelConfig& config, bool may_be_whole) {
  config.linear_layout = read_layout(fields, may_be_whole);
  read_layer_kinds(fields, config);
  if (std::ranges::none_of(config.linear_layers, std::identity())) {
    config.linear_layers.clear();
    return;
  }
  if (std::ranges::all_of(config.linear_layers, std::identity())) {
    fields.unsupported(
        fields.find("layer_types") != nullptr ? "layer_types" : "full_attention_interval",
        "a layer of 'full_attention' or more");
  }
  config.linear_key_heads = fields.required_integer("linear_num_key_heads", 1, kMaxHeads);
  config.linear_value_heads = fields.required_integer("linear_num_value_heads", 1, kMaxHeads);
  config.linear_key_dim = fields.required_integer("linear_key_head_dim", 1, kMaxLinearHeadWidth);
  config.linear_value_dim =
      fields.required_integer("linear_value_head_dim", 1, kMaxLinearHeadWidth);
  config.linear_taps = fields.required_integer("linear_conv_kernel_dim", 1, kMaxLinearTaps);
  if (config.linear_value_heads % config.linear_key_heads != 0) {
    fields.bad("linear_num_value_heads", "a multiple of linear_num_key_heads (" +
                                             std::to_string(config.linear_key_heads) + ")");
  }
  const auto require_width = [&](std::string_view name, int64_t heads, int64_t width) {
    if (width <= kMaxWidth / heads) return;
    fields.bad(name, "less: all heads together may have at most " + std::to_string(kMaxWidth) +
                         " elements");
  };
  require_width("linear_key_head_dim", config.linear_key_heads, config.linear_key_dim);
  require_width("linear_value_head_dim", config.linear_value_heads, config.linear_value_dim);
}

}  // namespace

void read_delta_config(const Fields& fields, ModelConfig& config, bool may_be_whole) {
  read_heads(fields, config);
  read_rope(fields, config, /*rotates_part=*/true);
  read_linear_layers(fields, config, may_be_whole);
  read_feed_forward(fields, config);
}

}  // namespace vitrine::checkpoint
