// SPDX-License-Identifier: Apache-2.0
#include "decoder_config.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "config_limits.h"
#include "layer_types.h"
#include "rope_config.h"

namespace vitrine::checkpoint {
namespace {

/// Reads which layers have no experts, as families other than Qwen's name them.
void read_dense_layers(const Fields& fields, ModelConfig& config) {
  const std::vector<std::string> types =
      read_layer_types(fields, "mlp_layer_types", config.num_layers, "dense", "sparse");
  for (size_t layer = 0; layer < types.size(); ++layer) {
    if (types[layer] == "dense") config.mlp_only_layers.push_back(static_cast<int64_t>(layer));
  }
  if (!types.empty()) return;
  const auto first =
      fields.integer({"first_k_dense_replace", "num_dense_layers"}, 0, kMaxLayers).value_or(0);
  const int64_t start = fields.integer("moe_layer_start_index", 0, kMaxLayers).value_or(0);
  const int64_t end = fields.integer("moe_layer_end_index", -1, kMaxLayers).value_or(-1);
  const int64_t interval = fields.integer("moe_layer_interval", 1, kMaxLayers).value_or(1);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool is_sparse = layer >= first && layer >= start && (end < 0 || layer <= end) &&
                           (layer + 1) % interval == 0;
    if (!is_sparse) config.mlp_only_layers.push_back(layer);
  }
}

void read_router(const Fields& fields, ModelConfig& config) {
  constexpr int64_t kMaxGroups = 64;
  config.router_groups = fields.integer("n_group", 1, kMaxGroups).value_or(1);
  const auto chosen = fields.integer("topk_group", 1, config.router_groups);
  if (!chosen && config.router_groups > 1) {
    fields.bad("topk_group", "how many of the " + std::to_string(config.router_groups) +
                                 " groups experts are chosen from");
  }
  config.router_chosen_groups = chosen.value_or(1);
  config.routed_scaling_factor = fields.number("routed_scaling_factor", 1e-9, 1e9).value_or(1.0);
  const int64_t of_group = config.num_experts / config.router_groups;
  if (config.num_experts % config.router_groups != 0) {
    fields.bad("n_group", "a divisor of the " + std::to_string(config.num_experts) + " experts");
  }
  if (config.router_groups > 1 &&
      (of_group < 2 || of_group * config.router_chosen_groups < config.num_experts_per_token)) {
    fields.bad("topk_group", "groups with as many experts as a token goes through");
  }
}

}  // namespace

bool has_window(const Fields& fields) {
  return fields.integer("sliding_window", 0, INT64_MAX).value_or(0) > 0;
}

bool asks_for_window(const Fields& fields) {
  return has_window(fields) && fields.boolean("use_sliding_window").value_or(false);
}

int64_t max_window_layers(const Fields& fields) {
  return fields.integer("max_window_layers", 0, INT64_MAX).value_or(28);
}

void read_heads(const Fields& fields, ModelConfig& config) {
  config.num_heads = fields.required_integer("num_attention_heads", 1, kMaxHeads);
  config.num_kv_heads =
      fields.integer("num_key_value_heads", 1, kMaxHeads).value_or(config.num_heads);
  if (config.num_heads % config.num_kv_heads != 0) {
    fields.bad("num_key_value_heads",
               "a divisor of num_attention_heads (" + std::to_string(config.num_heads) + ")");
  }
  if (const auto head_dim = fields.integer("head_dim", 1, kMaxWidth)) {
    config.head_dim = *head_dim;
    if (config.head_dim % 2 != 0) fields.bad("head_dim", "an even number (RoPE turns pairs)");
  } else {
    if (config.hidden_size % config.num_heads != 0 ||
        (config.hidden_size / config.num_heads) % 2 != 0) {
      fields.bad("hidden_size", "an even multiple of num_attention_heads (" +
                                    std::to_string(config.num_heads) + "), or a head_dim");
    }
    config.head_dim = config.hidden_size / config.num_heads;
  }
  if (config.head_dim > kMaxWidth / config.num_heads) {
    fields.bad(fields.find("head_dim") != nullptr ? "head_dim" : "num_attention_heads",
               "heads times head_dim of at most " + std::to_string(kMaxWidth));
  }
  const char* bias = fields.find("use_bias") != nullptr ? "use_bias" : "attention_bias";
  config.attention_bias = fields.boolean(bias).value_or(false);
  config.query_key_norm = fields.boolean("use_qk_norm");
  config.qkv_bias = fields.boolean("qkv_bias");
  config.clip_qkv = fields.number("clip_qkv", 1e-6, 1e9);
  config.attention_multiplier = fields.number("attention_multiplier", 1e-9, 1e9);
}

void read_windows(const Fields& fields, ModelConfig& config, SlidingRule rule) {
  const auto window = fields.integer("sliding_window", 0, INT64_MAX);
  const std::vector<std::string> layer_types = read_layer_types(
      fields, "layer_types", config.num_layers, "full_attention", "sliding_attention");
  std::vector<bool> slides;
  for (const std::string& type : layer_types) slides.push_back(type == "sliding_attention");
  for (int64_t layer = 0; layer_types.empty() && layer < config.num_layers; ++layer) {
    slides.push_back(rule != nullptr && rule(fields, config, layer));
  }
  if (std::ranges::none_of(slides, std::identity())) return;
  if (window.value_or(0) == 0)
    fields.bad("sliding_window", "1 or more positions, since layers slide");
  for (const bool is_sliding : slides) {
    const bool hides = is_sliding && *window < config.max_position_embeddings;
    config.windows.push_back(hides ? *window : 0);
  }
}

void read_feed_forward(const Fields& fields, ModelConfig& config) {
  config.num_experts =
      fields
          .integer({"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}, 0,
                   kMaxExperts)
          .value_or(0);
  config.intermediate_size = fields.integer("intermediate_size", 1, kMaxWidth).value_or(0);
  if (fields.boolean("mlp_bias").value_or(false)) {
    fields.unsupported("mlp_bias", "false (there are no biases in feed-forward blocks)");
  }
  config.num_draft_layers =
      fields.integer({"num_nextn_predict_layers", "num_mtp_layers"}, 0, kMaxLayers).value_or(0);
  if (config.num_experts == 0) {
    if (config.intermediate_size == 0) fields.required_integer("intermediate_size", 1, kMaxWidth);
    return;
  }
  const char* top_k = fields.find("moe_k") != nullptr ? "moe_k" : "num_experts_per_tok";
  config.num_experts_per_token = fields.required_integer(top_k, 1, config.num_experts);
  config.moe_intermediate_size =
      fields.integer("moe_intermediate_size", 1, kMaxWidth).value_or(config.intermediate_size);
  if (config.moe_intermediate_size == 0) {
    fields.required_integer("moe_intermediate_size", 1, kMaxWidth);
  }
  config.shared_expert_intermediate_size =
      fields.integer("shared_expert_intermediate_size", 0, kMaxWidth).value_or(0);
  if (const auto shared =
          fields.integer({"n_shared_experts", "moe_num_shared_experts"}, 0, kMaxExperts)) {
    if (*shared > kMaxWidth / config.moe_intermediate_size) {
      fields.bad("n_shared_experts", "fewer: together they are too wide");
    }
    config.shared_expert_intermediate_size = *shared * config.moe_intermediate_size;
  }
  config.norm_topk_prob = fields.boolean("norm_topk_prob");
  config.decoder_sparse_step = fields.integer("decoder_sparse_step", 1, kMaxLayers).value_or(1);
  config.mlp_only_layers = fields.integers("mlp_only_layers", 0, config.num_layers - 1, kMaxLayers);
  read_dense_layers(fields, config);
  std::ranges::sort(config.mlp_only_layers);
  read_router(fields, config);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_sparse_layer(layer) && config.intermediate_size == 0) {
      fields.bad("intermediate_size",
                 "the size of the dense feed-forward block of layer " + std::to_string(layer));
    }
  }
}

void read_decoder(const Fields& fields, ModelConfig& config, SlidingRule slides,
                  bool rotates_part) {
  read_heads(fields, config);
  read_rope(fields, config, rotates_part);
  read_windows(fields, config, slides);
  read_feed_forward(fields, config);
}

void read_decoder_config(const Fields& fields, ModelConfig& config) {
  read_decoder(fields, config, nullptr);
}

}  // namespace vitrine::checkpoint
