// SPDX-License-Identifier: Apache-2.0
// Gemma 4's config.json. Values that stand in where a field is absent are transformers' own.
#include <algorithm>
#include <cmath>
#include <functional>

#include "checkpoint/config_limits.h"
#include "checkpoint/layer_types.h"
#include "model/gemma4.h"

namespace vitrine::model {
namespace {

using checkpoint::Fields;
using checkpoint::kMaxExperts;
using checkpoint::kMaxHeads;
using checkpoint::kMaxVocabulary;
using checkpoint::kMaxWidth;

constexpr double kMaxGemmaTheta = 1e15;

void require_even(const Fields& fields, std::string_view name, int64_t head_dim,
                  const ModelConfig& config) {
  if (head_dim % 2 != 0) fields.bad(name, "an even number (RoPE turns pairs)");
  if (head_dim > kMaxWidth / config.num_heads) {
    fields.bad(name, "heads times head_dim of at most " + std::to_string(kMaxWidth));
  }
}

void require_divisor(const Fields& fields, std::string_view name, int64_t kv_heads,
                     const ModelConfig& config) {
  if (config.num_heads % kv_heads == 0) return;
  fields.bad(name, "a divisor of num_attention_heads (" + std::to_string(config.num_heads) + ")");
}

/// Which layers slide: as the config lists them, else five of six; the last one never does.
void read_gemma_slides(const Fields& fields, ModelConfig& config) {
  const std::vector<std::string> types = checkpoint::read_layer_types(
      fields, "layer_types", config.num_layers, "full_attention", "sliding_attention");
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    const bool slides = types.empty() ? (layer + 1) % 6 != 0
                                      : types[static_cast<size_t>(layer)] == "sliding_attention";
    config.slides.push_back(slides && layer + 1 < config.num_layers);
  }
  const int64_t window = fields.integer("sliding_window", 0, INT64_MAX).value_or(512);
  if (std::ranges::none_of(config.slides, std::identity())) return;
  if (window == 0) fields.bad("sliding_window", "1 or more positions, since layers slide");
  for (const bool slides : config.slides) {
    config.windows.push_back(slides && window < config.max_position_embeddings ? window : 0);
  }
}

/// transformers 5.23 writes the fields of single layers; all layers that do not slide have the same
/// ones.
void read_per_layer_config(const Fields& fields, ModelConfig& config) {
  const auto all = fields.object("per_layer_config");
  if (!all) return;
  int64_t found = 0;
  for (const auto& [key, value] : fields.find("per_layer_config")->items()) {
    int64_t layer = -1;
    for (int64_t i = 0; i < config.num_layers && layer < 0; ++i) {
      if (key == std::to_string(i)) layer = i;
    }
    const auto own = all->object(key);
    if (layer < 0 || !own) all->bad(key, "an object of the fields of one of the model's layers");
    for (const auto& [name, field] : value.items()) {
      if (name == "head_dim" || name == "num_key_value_heads") continue;
      own->unsupported(name, "head_dim and num_key_value_heads alone");
    }
    const int64_t head_dim = own->integer("head_dim", 1, kMaxWidth).value_or(config.head_dim);
    const int64_t kv_heads =
        own->integer("num_key_value_heads", 1, kMaxHeads).value_or(config.num_kv_heads);
    if (config.slides[static_cast<size_t>(layer)]) {
      if (head_dim == config.head_dim && kv_heads == config.num_kv_heads) continue;
      all->unsupported(key, "no fields of its own for a layer that slides");
    }
    if (found++ > 0 && (head_dim != config.global_head_dim || kv_heads != config.global_kv_heads)) {
      all->unsupported(key, "the same fields for all layers that do not slide");
    }
    config.global_head_dim = head_dim;
    config.global_kv_heads = kv_heads;
    require_even(*own, "head_dim", head_dim, config);
    require_divisor(*own, "num_key_value_heads", kv_heads, config);
  }
  int64_t global = 0;
  for (const bool slides : config.slides) global += slides ? 0 : 1;
  if (found != 0 && found != global) {
    fields.unsupported("per_layer_config", "the same fields for all layers that do not slide");
  }
}

void read_gemma_heads(const Fields& fields, ModelConfig& config, Gemma4Fields& own) {
  config.num_heads = fields.required_integer("num_attention_heads", 1, kMaxHeads);
  config.num_kv_heads = fields.integer("num_key_value_heads", 1, kMaxHeads).value_or(4);
  require_divisor(fields, "num_key_value_heads", config.num_kv_heads, config);
  config.head_dim = fields.integer("head_dim", 1, kMaxWidth).value_or(256);
  require_even(fields, "head_dim", config.head_dim, config);
  config.attention_bias = fields.boolean("attention_bias").value_or(false);
  own.values_from_keys = fields.boolean("attention_k_eq_v").value_or(false);
  if (fields.string("use_bidirectional_attention").value_or("vision") != "vision") {
    fields.unsupported("use_bidirectional_attention", "'vision' or null (text sees the past)");
  }
  config.global_head_dim = config.head_dim;
  config.global_kv_heads = config.num_kv_heads;
  if (fields.find("per_layer_config") != nullptr) return read_per_layer_config(fields, config);
  config.global_head_dim = fields.integer("global_head_dim", 1, kMaxWidth).value_or(512);
  require_even(fields, "global_head_dim", config.global_head_dim, config);
  const auto kv_heads = fields.integer("num_global_key_value_heads", 1, kMaxHeads);
  if (!kv_heads || !own.values_from_keys) return;
  config.global_kv_heads = *kv_heads;
  require_divisor(fields, "num_global_key_value_heads", *kv_heads, config);
}

void read_gemma_rotary(const Fields& fields, ModelConfig& config) {
  config.rope_theta = 1e6;
  config.sliding_rope_theta = 1e4;
  config.global_rotary_share = 0.25;
  const auto rope = fields.object("rope_parameters");
  if (!rope) return;
  const auto sliding = rope->object("sliding_attention"), full = rope->object("full_attention");
  if (!sliding) rope->bad("sliding_attention", "the RoPE parameters of layers that slide");
  if (!full) rope->bad("full_attention", "the RoPE parameters of layers that do not slide");
  for (const Fields* kind : {&*sliding, &*full}) {
    const std::string type = kind->string("rope_type").value_or("default");
    const bool is_proportional = kind == &*full && type == "proportional";
    if (type != "default" && !is_proportional) {
      kind->unsupported("rope_type", kind == &*full ? "'default' or 'proportional'" : "'default'");
    }
    if (kind->number("factor", 1e-6, 1e6).value_or(1.0) != 1.0) kind->unsupported("factor", "1");
    const auto theta = kind->number("rope_theta", 1.0, kMaxGemmaTheta);
    if (!theta) kind->bad("rope_theta", "a number");
    const double share = kind->number("partial_rotary_factor", 0.0, 1.0).value_or(1.0);
    if (kind == &*full) {
      config.rope_theta = *theta;
      config.global_rotary_share = is_proportional ? share : 1.0;
    } else {
      config.sliding_rope_theta = *theta;
    }
  }
}

void read_gemma_shared_layers(const Fields& fields, ModelConfig& config, Gemma4Fields& own) {
  config.num_kv_shared_layers =
      fields.integer("num_kv_shared_layers", 0, config.num_layers - 1).value_or(0);
  own.double_wide_mlp = fields.boolean("use_double_wide_mlp").value_or(false);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.kv_source(layer) >= 0) continue;
    fields.bad("num_kv_shared_layers", "fewer: layer " + std::to_string(layer) +
                                           " has none of its kind before it whose keys and values "
                                           "it could read");
  }
}

void read_gemma_blocks(const Fields& fields, ModelConfig& config, Gemma4Fields& own) {
  config.intermediate_size = fields.required_integer("intermediate_size", 1, kMaxWidth / 2);
  if (fields.boolean("enable_moe_block").value_or(false)) {
    config.num_experts = fields.required_integer("num_experts", 1, kMaxExperts);
    config.num_experts_per_token = fields.required_integer("top_k_experts", 1, config.num_experts);
    config.moe_intermediate_size = fields.required_integer("moe_intermediate_size", 1, kMaxWidth);
    config.norm_topk_prob = true;
  }
  own.per_layer_input_size =
      fields.integer("hidden_size_per_layer_input", 0, kMaxWidth).value_or(256);
  if (own.per_layer_input_size == 0) return;
  if (own.per_layer_input_size > kMaxWidth / config.num_layers) {
    fields.bad("hidden_size_per_layer_input",
               "times the layers at most " + std::to_string(kMaxWidth));
  }
  own.per_layer_vocab_size =
      fields.integer("vocab_size_per_layer_input", 1, kMaxVocabulary).value_or(262144);
  if (own.per_layer_vocab_size < config.vocab_size) {
    fields.bad("vocab_size_per_layer_input",
               "at least vocab_size (" + std::to_string(config.vocab_size) + ")");
  }
}

}  // namespace

void read_gemma4(const Fields& fields, ModelConfig& config) {
  const auto own = std::make_shared<Gemma4Fields>();
  config.own = own;
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings").value_or(true);
  if (fields.string("hidden_activation").value_or("gelu_pytorch_tanh") != "gelu_pytorch_tanh") {
    fields.unsupported("hidden_activation", "'gelu_pytorch_tanh'");
  }
  read_gemma_slides(fields, config);
  read_gemma_heads(fields, config, *own);
  read_gemma_rotary(fields, config);
  read_gemma_shared_layers(fields, config, *own);
  read_gemma_blocks(fields, config, *own);
  own->final_logit_softcapping = fields.number("final_logit_softcapping", 1e-6, 1e9).value_or(0.0);
  config.embedding_multiplier = std::sqrt(static_cast<double>(config.hidden_size));
}

}  // namespace vitrine::model
