// SPDX-License-Identifier: Apache-2.0
#include "latent_config.h"

#include <algorithm>
#include <string>

#include "config_limits.h"
#include "decoder_config.h"
#include "rope_config.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

void require_width(const Fields& fields, const ModelConfig& config, std::string_view name,
                   int64_t width) {
  if (width <= kMaxWidth / config.num_heads) return;
  fields.bad(
      name, "less: all heads together may have at most " + std::to_string(kMaxWidth) + " elements");
}

}  // namespace

void read_latent_heads(const Fields& fields, ModelConfig& config) {
  config.num_heads = fields.required_integer("num_attention_heads", 1, kMaxHeads);
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
  config.rope_interleave = fields.boolean("rope_interleave").value_or(true);
}

void check_routing(const Fields& fields, const ModelConfig& config, std::string_view scoring,
                   std::initializer_list<std::string_view> methods) {
  if (config.num_experts == 0) return;
  if (fields.integer("moe_layer_freq", 1, kMaxLayers).value_or(1) != 1) {
    fields.unsupported("moe_layer_freq", "1 (experts in each layer behind the dense ones)");
  }
  if (fields.string("scoring_func").value_or(std::string(scoring)) != scoring) {
    fields.unsupported("scoring_func", quote_text(scoring));
  }
  const auto method = fields.string("topk_method");
  if (!method || std::ranges::find(methods, *method) != methods.end()) return;
  std::string known;
  for (const std::string_view name : methods) {
    known += (known.empty() ? "" : " or ") + quote_text(name);
  }
  fields.unsupported("topk_method", known);
}

void read_latent_config(const Fields& fields, ModelConfig& config) {
  read_latent_heads(fields, config);
  read_rope(fields, config);
  read_windows(fields, config);
  read_feed_forward(fields, config);
  check_routing(fields, config, "sigmoid", {"noaux_tc"});
}

}  // namespace vitrine::checkpoint
