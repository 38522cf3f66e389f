// SPDX-License-Identifier: Apache-2.0
#include "latent_config.h"

#include <algorithm>

#include "config_limits.h"

namespace vitrine::checkpoint {
namespace {

bool is_deepseek_v3(const ModelConfig& config) {
  return config.model_type == "deepseek_v3" || config.model_type == "kimi_k2";
}

void require_width(const Fields& fields, const ModelConfig& config, std::string_view name,
                   int64_t width) {
  if (width <= kMaxWidth / config.num_heads) return;
  fields.bad(
      name, "less: all heads together may have at most " + std::to_string(kMaxWidth) + " elements");
}

}  // namespace

bool has_latent_attention(const ModelConfig& config) {
  return is_deepseek_v3(config) || config.model_type == "deepseek_v2" ||
         config.model_type == "glm4_moe_lite";
}

void read_latent(const Fields& fields, ModelConfig& config) {
  config.kv_lora_rank = fields.required_integer("kv_lora_rank", 1, kMaxWidth);
  config.q_lora_rank = fields.integer("q_lora_rank", 1, kMaxWidth).value_or(0);
  config.qk_nope_head_dim = fields.required_integer("qk_nope_head_dim", 1, kMaxWidth);
  config.v_head_dim = fields.required_integer("v_head_dim", 1, kMaxWidth);
  config.rotary_dim = fields.required_integer("qk_rope_head_dim", 2, kMaxWidth);
  if (config.rotary_dim % 2 != 0) {
    fields.bad("qk_rope_head_dim", "an even number (RoPE turns pairs)");
  }
  config.head_dim = config.qk_nope_head_dim + config.rotary_dim;
  require_width(fields, config, "qk_nope_head_dim",
                config.qk_nope_head_dim + config.rotary_dim + config.v_head_dim);
  require_width(fields, config, "kv_lora_rank", config.kv_lora_rank + config.rotary_dim);
  // GGUF files say 1, folders as many as there are of queries: each head makes its own.
  const int64_t kv_heads =
      fields.integer("num_key_value_heads", 1, kMaxHeads).value_or(config.num_heads);
  if (kv_heads != 1 && kv_heads != config.num_heads) {
    fields.bad("num_key_value_heads",
               "num_attention_heads (" + std::to_string(config.num_heads) + ")");
  }
  config.num_kv_heads = 1;
  config.attention_bias = fields.boolean("attention_bias").value_or(false);
  config.rope_interleave =
      config.model_type == "deepseek_v2" || fields.boolean("rope_interleave").value_or(true);
}

void check_routing(const Fields& fields, ModelConfig& config) {
  if (fields.integer("moe_layer_freq", 1, kMaxLayers).value_or(1) != 1) {
    fields.unsupported("moe_layer_freq", "1 (experts in each layer behind the dense ones)");
  }
  const bool is_v2 = config.model_type == "deepseek_v2";
  const auto scoring = fields.string("scoring_func");
  if (scoring && *scoring != (is_v2 ? "softmax" : "sigmoid")) {
    fields.unsupported("scoring_func", is_v2 ? "'softmax'" : "'sigmoid'");
  }
  const auto method = fields.string("topk_method");
  if (is_v2 && method.value_or("greedy") == "greedy") {
    config.router_groups = config.router_chosen_groups = 1;
  }
  if (!method) return;
  if (is_v2 ? *method != "greedy" && *method != "group_limited_greedy" : *method != "noaux_tc") {
    fields.unsupported("topk_method", is_v2 ? "'greedy' or 'group_limited_greedy'" : "'noaux_tc'");
  }
}

}  // namespace vitrine::checkpoint
