// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <functional>
#include <set>

#include "config_limits.h"
#include "delta_config.h"
#include "fields.h"
#include "gemma_config.h"
#include "latent_config.h"
#include "layer_types.h"
#include "lfm_config.h"
#include "rope_config.h"
#include "text.h"
#include "vitrine/checkpoint.h"
#include "wrapper.h"

namespace vitrine {
namespace {

using checkpoint::Fields;
using checkpoint::kMaxExperts;
using checkpoint::kMaxHeads;
using checkpoint::kMaxLayers;
using checkpoint::kMaxPositions;
using checkpoint::kMaxVocabulary;
using checkpoint::kMaxWidth;

DType parse_dtype(const Fields& fields) {
  const char* field = fields.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  std::string name = fields.string(field).value_or("float32");
  if (name.starts_with("torch.")) name.erase(0, 6);
  if (name == "float32") return DType::kF32;
  if (name == "float16") return DType::kF16;
  if (name == "bfloat16") return DType::kBF16;
  fields.unsupported(field, "'float32', 'float16' or 'bfloat16'");
}

void read_attention(const Fields& fields, ModelConfig& config) {
  config.num_heads = fields.required_integer("num_attention_heads", 1, kMaxHeads);
  if (checkpoint::has_latent_attention(config)) return checkpoint::read_latent(fields, config);
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

/// Which layers see a window where no list says it, as each family's code in transformers decides.
std::vector<bool> usual_slides(const Fields& fields, const ModelConfig& config, bool has_window) {
  std::vector<bool> slides(static_cast<size_t>(config.num_layers), false);
  const auto choose = [&](const auto& does_slide) {
    for (size_t layer = 0; layer < slides.size(); ++layer) slides[layer] = does_slide(layer);
  };
  const std::string& type = config.model_type;
  if (type == "gpt_oss") {
    choose([](size_t layer) { return layer % 2 == 0; });
  } else if (has_window && (type == "mistral" || type == "mixtral")) {
    choose([](size_t) { return true; });
  }
  if (!has_window || (type != "dots1" && !fields.boolean("use_sliding_window").value_or(false))) {
    return slides;
  }
  const auto most =
      static_cast<size_t>(fields.integer("max_window_layers", 0, INT64_MAX).value_or(28));
  if (type == "dots1" || type == "qwen2" || type == "qwen3") {
    choose([&](size_t layer) { return layer >= most; });
  } else if (type == "qwen2_moe") {
    choose([&](size_t layer) { return layer % 2 == 0 && layer < most; });
  } else if (type == "qwen3_moe") {
    choose([](size_t) { return true; });
  } else if (type == "smollm3") {
    choose([&](size_t layer) { return !config.rotates[layer]; });
  }
  return slides;
}

void read_windows(const Fields& fields, ModelConfig& config) {
  const auto window = fields.integer("sliding_window", 0, INT64_MAX);
  const bool has_window = window.value_or(0) > 0;
  const std::vector<std::string> layer_types = checkpoint::read_layer_types(
      fields, "layer_types", config.num_layers, "full_attention", "sliding_attention");
  std::vector<bool> slides;
  for (const std::string& type : layer_types) slides.push_back(type == "sliding_attention");
  if (layer_types.empty()) slides = usual_slides(fields, config, has_window);
  if (std::ranges::none_of(slides, std::identity())) return;
  if (!has_window) fields.bad("sliding_window", "1 or more positions, since layers slide");
  for (const bool is_sliding : slides) {
    const bool hides = is_sliding && *window < config.max_position_embeddings;
    config.windows.push_back(hides ? *window : 0);
  }
}

/// gpt_oss: the constants of its gating.
void read_gating(const Fields& fields, ModelConfig& config) {
  if (config.model_type != "gpt_oss") return;
  config.swiglu_limit = fields.number("swiglu_limit", 1e-6, 1e9).value_or(7.0);
  config.swiglu_alpha = fields.number("swiglu_alpha", 1e-6, 1e9).value_or(1.702);
}

/// Layers without experts, as families other than Qwen's name them.
void read_dense_layers(const Fields& fields, ModelConfig& config) {
  const std::vector<std::string> types =
      checkpoint::read_layer_types(fields, "mlp_layer_types", config.num_layers, "dense", "sparse");
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

/// smollm3: layers whose heads are not rotated.
void read_unrotated_layers(const Fields& fields, ModelConfig& config) {
  if (config.model_type != "smollm3") return;
  const std::vector<int64_t> rotated = fields.integers("no_rope_layers", 0, 1, kMaxLayers);
  if (!rotated.empty() && std::ssize(rotated) != config.num_layers) {
    fields.bad("no_rope_layers", "a number for each of " + std::to_string(config.num_layers) +
                                     " layers, found " + std::to_string(rotated.size()));
  }
  const int64_t interval = fields.integer("no_rope_layer_interval", 1, kMaxLayers).value_or(4);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    config.rotates.push_back(rotated.empty() ? (layer + 1) % interval != 0
                                             : rotated[static_cast<size_t>(layer)] == 1);
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
  // These have no such field: they always give weights that sum to one.
  if (config.model_type == "mixtral" || config.model_type == "granitemoe" ||
      config.model_type.starts_with("qwen3_5")) {
    config.norm_topk_prob = true;
  }
  config.decoder_sparse_step = fields.integer("decoder_sparse_step", 1, kMaxLayers).value_or(1);
  config.mlp_only_layers = fields.integers("mlp_only_layers", 0, config.num_layers - 1, kMaxLayers);
  read_dense_layers(fields, config);
  std::ranges::sort(config.mlp_only_layers);
  read_router(fields, config);
  if (config.is_latent()) checkpoint::check_routing(fields, config);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.is_sparse_layer(layer) && config.intermediate_size == 0) {
      fields.bad("intermediate_size",
                 "the size of the dense feed-forward block of layer " + std::to_string(layer));
    }
  }
}

/// Families that would need what is not here, and why.
void refuse_family(const Fields& fields, const ModelConfig& config) {
  if (config.model_type == "phimoe") {
    fields.unsupported("model_type",
                       "another architecture: its experts are chosen by sparsemixer, its norms are "
                       "LayerNorms, and its RoPE lists change with a text's length, so that a "
                       "token would have two results");
  }
  if (config.model_type == "llama4" || config.model_type == "llama4_text") {
    fields.unsupported("model_type",
                       "another architecture: its attention in chunks, the temperature of its "
                       "queries and experts whose inputs are scaled are not supported");
  }
}

}  // namespace

ModelConfig parse_model_config(std::string_view config_json, const std::string& config_name,
                               std::string_view generation_config_json,
                               const std::string& generation_config_name) {
  const checkpoint::TextConfig text =
      checkpoint::text_config(parse_json_object(config_json, config_name), config_name);
  const Fields fields(text.fields, text.place);
  ModelConfig config;
  const auto model_type = fields.string("model_type");
  if (!model_type || model_type->empty()) fields.bad("model_type", "the architecture's name");
  config.model_type = *model_type;
  refuse_family(fields, config);
  config.architectures = fields.strings("architectures");
  config.vocab_size = fields.required_integer("vocab_size", 1, kMaxVocabulary);
  config.hidden_size = fields.required_integer("hidden_size", 1, kMaxWidth);
  config.num_layers = fields.required_integer("num_hidden_layers", 1, kMaxLayers);
  config.max_position_embeddings =
      fields.required_integer("max_position_embeddings", 1, kMaxPositions);
  const bool is_lfm = checkpoint::is_lfm(config);
  const char* epsilon_field = is_lfm ? "norm_eps" : "rms_norm_eps";
  const auto epsilon = fields.number(epsilon_field, 0.0, 1.0);
  if (!epsilon || *epsilon == 0.0) fields.bad(epsilon_field, "a number above 0, at most 1");
  config.rms_norm_eps = *epsilon;
  config.tie_word_embeddings =
      fields
          .boolean(fields.find("tie_embedding") != nullptr ? "tie_embedding"
                                                           : "tie_word_embeddings")
          .value_or(false);
  config.dtype = parse_dtype(fields);
  if (fields.string("hidden_act").value_or("silu") != "silu") {
    fields.unsupported("hidden_act", "'silu'");
  }
  config.embedding_multiplier = fields.number("embedding_multiplier", 1e-9, 1e9).value_or(1.0);
  if (checkpoint::is_gemma(config)) {
    checkpoint::read_gemma(fields, config);
  } else {
    read_attention(fields, config);
    checkpoint::read_rope(fields, config);
    read_unrotated_layers(fields, config);
    if (checkpoint::has_linear_layers(config)) {
      checkpoint::read_linear_layers(fields, config);
    } else if (is_lfm) {
      checkpoint::read_convolutions(fields, config);
    } else {
      read_windows(fields, config);
    }
    read_feed_forward(fields, config);
    read_gating(fields, config);
  }
  config.residual_multiplier = fields.number("residual_multiplier", 1e-9, 1e9).value_or(1.0);
  config.logits_scaling = fields.number("logits_scaling", 1e-9, 1e9).value_or(1.0);

  std::set<int64_t> end_ids;
  const auto read_ids = [&](const Fields& from) {
    constexpr size_t kMaxIds = 1024;
    for (int64_t id : from.integers("eos_token_id", 0, config.vocab_size - 1, kMaxIds)) {
      end_ids.insert(id);
    }
    const auto begin_ids = from.integers("bos_token_id", 0, config.vocab_size - 1, 1);
    if (!config.bos_token_id && !begin_ids.empty()) config.bos_token_id = begin_ids[0];
  };
  read_ids(fields);
  if (!generation_config_json.empty()) {
    const nlohmann::json generation =
        parse_json_object(generation_config_json, generation_config_name);
    read_ids(Fields(generation, generation_config_name));
  }
  config.eos_token_ids.assign(end_ids.begin(), end_ids.end());
  return config;
}

ModelConfig parse_model_config(const Checkpoint& checkpoint) {
  ModelConfig config = parse_model_config(
      checkpoint.config_json(), checkpoint.config_name(), checkpoint.generation_config_json(),
      checkpoint.is_gguf() ? checkpoint.config_name()
                           : checkpoint.path() + "/generation_config.json");
  // A file that has a head decides, as in transformers: it is the embedding only where both hold
  // the same numbers.
  constexpr const char* kHead = "lm_head";
  if (checkpoint.find(std::string(kHead) + ".weight") != nullptr ||
      checkpoint.find_quantized(kHead) != nullptr) {
    config.tie_word_embeddings = false;
  }
  return config;
}

}  // namespace vitrine
