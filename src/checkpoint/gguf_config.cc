// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "config_limits.h"
#include "core/end_texts.h"
#include "gguf_model.h"
#include "text.h"

namespace vitrine::checkpoint {

const TensorInfo* find_tensor(const std::vector<TensorInfo>& tensors, const std::string& name) {
  const auto found = std::ranges::lower_bound(tensors, name, {}, &TensorInfo::name);
  return found == tensors.end() || found->name != name ? nullptr : &*found;
}

namespace {

/// Writes what the config.json of most decoders says, field by field.
class DecoderWriter {
 public:
  DecoderWriter(const GgufSource& source, OrderedJson& config)
      : source_(source),
        architecture_(source.architecture),
        metadata_(source.metadata),
        config_(config),
        hidden_(config["hidden_size"].get<int64_t>()),
        layers_(config["num_hidden_layers"].get<int64_t>()),
        context_(config["max_position_embeddings"].get<int64_t>()) {}

  void write() {
    write_attention();
    write_rope(source_.rope_factors);
    write_feed_forward();
  }

 private:
  std::string key(std::string_view name) const { return source_.key(name); }
  const TensorInfo* tensor(const std::string& name) const { return source_.tensor(name); }

  void write_attention() {
    heads_ = metadata_.uniform_integer(key("attention.head_count"), 1, kMaxHeads).value_or(0);
    if (heads_ == 0) metadata_.bad(key("attention.head_count"), "the number of query heads");
    const int64_t kv_heads =
        architecture_.write_kv_heads != nullptr
            ? architecture_.write_kv_heads(source_, layers_, config_)
            : metadata_.uniform_integer(key("attention.head_count_kv"), 1, kMaxHeads)
                  .value_or(heads_);
    if (heads_ % kv_heads != 0) {
      metadata_.bad(key("attention.head_count_kv"),
                    "a divisor of the " + std::to_string(heads_) + " query heads");
    }
    config_["num_attention_heads"] = heads_;
    if (architecture_.has_latents) {
      head_dim_ = write_latent_attention(source_, heads_, config_);
      return;
    }
    config_["num_key_value_heads"] = kv_heads;
    head_dim_ =
        metadata_.integer(key("attention.key_length"), 2, kMaxWidth).value_or(hidden_ / heads_);
    const auto value_dim = metadata_.integer(key("attention.value_length"), 1, kMaxWidth);
    if (value_dim && *value_dim != head_dim_) {
      metadata_.unsupported(key("attention.value_length"),
                            std::to_string(head_dim_) + ", the length of a key");
    }
    config_["head_dim"] = head_dim_;
    if (architecture_.has_linear_layers) write_linear_layers(source_, layers_, config_);
    write_biases(source_, config_);
    if (const auto clip = metadata_.number(key("attention.clamp_kqv"), 0.0, 1e9);
        clip && *clip > 0) {
      config_["clip_qkv"] = *clip;
    }
    const auto window = metadata_.uniform_integer(key("attention.sliding_window"), 0, INT64_MAX);
    if (architecture_.has_windows) {
      if (!window || *window == 0) metadata_.bad(key("attention.sliding_window"), "1 or more");
      config_["sliding_window"] = *window;  // the file does not say which layers have it
      return;
    }
    if (window && *window > 0 && *window < context_) {
      metadata_.unsupported(key("attention.sliding_window"),
                            "0, or the context's length (sliding windows are not supported)");
    }
  }

  void write_rope(const std::vector<float>& factors) {
    const auto rotated = metadata_.integer(key("rope.dimension_count"), 1, kMaxWidth);
    if (rotated && architecture_.rotates_part) {
      if (*rotated > head_dim_) {
        metadata_.bad(key("rope.dimension_count"), "at most " + std::to_string(head_dim_));
      }
      config_["rotary_dim"] = *rotated;
    } else if (architecture_.rotates_part && !architecture_.has_linear_layers) {
      config_["rotary_dim"] = head_dim_;
    } else if (rotated && *rotated != head_dim_) {
      metadata_.unsupported(key("rope.dimension_count"),
                            std::to_string(head_dim_) + " (whole heads)");
    }
    config_["rope_theta"] = metadata_.number(key("rope.freq_base"), 1.0, 1e15).value_or(10000.0);
    const auto factor = metadata_.number(key("rope.scaling.factor"), 0.0, 1e6);
    const auto old_factor = metadata_.number(key("rope.scale_linear"), 0.0, 1e6);
    double scale = factor.value_or(old_factor.value_or(0.0));
    if (scale == 0.0) scale = 1.0;  // the format's way to say that there is none
    const std::string type_key = key("rope.scaling.type");
    const std::string type = metadata_.string(type_key).value_or("linear");
    if (type != "none" && type != "linear" && type != "yarn" &&
        !(type == "longrope" && !factors.empty())) {
      metadata_.unsupported(type_key, "'none', 'linear' or 'yarn'");
    }
    if (type == "none") scale = 1.0;
    if (!factors.empty()) {
      if (type == "yarn") metadata_.unsupported(type_key, "no factors beside it");
      refuse_yarn_values(source_);
      return write_rope_factors(factors, scale);
    }
    if (type == "yarn" && scale != 1.0) return write_yarn(scale);
    refuse_yarn_values(source_);
    if (scale != 1.0) config_["rope_scaling"] = {{"rope_type", "linear"}, {"factor", scale}};
  }

  /// Llama 3's scaling comes as the divisors that it makes. Hugging Face's type with a list of
  /// divisors is longrope; one list for short and long texts makes it this.
  void write_rope_factors(const std::vector<float>& factors, double scale) {
    const std::string place = metadata_.file() + ": the tensor 'rope_freqs.weight'";
    if (factors.size() != static_cast<size_t>(head_dim_ / 2)) {
      throw_bad_file(place + " has " + std::to_string(factors.size()) + " values; expected " +
                     std::to_string(head_dim_ / 2) + ", half a head");
    }
    OrderedJson list = OrderedJson::array();
    for (float factor : factors) {
      const double value = static_cast<double>(factor) * scale;
      if (!(value > 1e-6 && value < 1e6)) {
        throw_bad_file(place + " holds " + std::to_string(factor) + "; expected divisors above 0");
      }
      list.push_back(value);
    }
    config_["rope_scaling"] = {
        {"rope_type", "longrope"}, {"short_factor", list},
        {"long_factor", list},     {"attention_factor", 1.0},
        {"factor", 1.0},           {"original_max_position_embeddings", context_}};
  }

  void write_yarn(double factor) {
    const std::string original_key = key("rope.scaling.original_context_length");
    const auto extrapolation = metadata_.number(key("rope.scaling.yarn_ext_factor"), -1.0, 1e6);
    if (extrapolation && *extrapolation >= 0.0 && *extrapolation != 1.0) {
      metadata_.unsupported(key("rope.scaling.yarn_ext_factor"), "1");
    }
    const double attention =
        metadata_.number(key("rope.scaling.attn_factor"), 0.0, 1e6)
            .value_or(
                metadata_.number(key("rope.scaling.yarn_attn_factor"), 0.0, 1e6).value_or(1.0));
    config_["rope_scaling"] = {
        {"rope_type", "yarn"},
        {"factor", factor},
        {"original_max_position_embeddings",
         metadata_.integer(original_key, 1, kMaxPositions).value_or(context_)},
        {"beta_fast",
         metadata_.number(key("rope.scaling.yarn_beta_fast"), 0.0, 1e6).value_or(32.0)},
        {"beta_slow",
         metadata_.number(key("rope.scaling.yarn_beta_slow"), 0.0, 1e6).value_or(1.0)}};
    if (architecture_.has_latents) {
      write_latent_yarn(source_, config_["rope_scaling"]);
    }
    if (attention != 1.0) {
      const double usual = factor <= 1.0 ? 1.0 : 0.1 * std::log(factor) + 1.0;
      config_["rope_scaling"]["attention_factor"] = attention * usual;
    }
  }

  /// Returns the rows of the first such matrix of any layer, for a size that the metadata leaves
  /// out; 0 where no layer has one.
  int64_t rows_of_any_layer(const std::string& module) const {
    for (int64_t layer = 0; layer < layers_; ++layer) {
      const TensorInfo* info =
          tensor("model.layers." + std::to_string(layer) + "." + module + ".weight");
      if (info != nullptr) return info->shape[0];
    }
    return 0;
  }

  void write_feed_forward() {
    const auto dense = metadata_.uniform_integer(key("feed_forward_length"), 0, kMaxWidth);
    if (!architecture_.has_experts) {
      if (!dense || *dense == 0) metadata_.bad(key("feed_forward_length"), "a size");
      config_["intermediate_size"] = *dense;
      return;
    }
    const std::string block(architecture_.block);
    const int64_t experts = metadata_.required_integer(key("expert_count"), 1, kMaxExperts);
    const int64_t expert_rows =
        metadata_.integer(key("expert_feed_forward_length"), 1, kMaxWidth)
            .value_or(rows_of_any_layer(block + ".experts.0." + std::string(architecture_.gate)));
    if (expert_rows == 0) metadata_.bad(key("expert_feed_forward_length"), "a size");
    config_["intermediate_size"] =
        architecture_.has_one_width || dense.value_or(0) == 0 ? expert_rows : *dense;
    if (!architecture_.has_one_width) config_["moe_intermediate_size"] = expert_rows;
    const bool is_local = architecture_.has_local_experts;
    config_[is_local ? "num_local_experts" : "num_experts"] = experts;
    config_["num_experts_per_tok"] =
        metadata_.required_integer(key("expert_used_count"), 1, experts);
    if (!is_local) {
      config_["norm_topk_prob"] =
          metadata_.boolean(key("expert_weights_norm")).value_or(architecture_.normalizes_top_k);
    }
    const bool has_sigmoid = architecture_.has_sigmoid;
    if (const auto gating = metadata_.integer(key("expert_gating_func"), 0, 100);
        gating && *gating != 0 && *gating != (has_sigmoid ? 2 : 1)) {
      metadata_.unsupported(key("expert_gating_func"), has_sigmoid ? "2, sigmoid" : "1, softmax");
    }
    if (!architecture_.correction.empty() || architecture_.has_latents) write_scores(experts);
    if (architecture_.shared_block == "mlp.shared_expert") {
      config_["shared_expert_intermediate_size"] =
          metadata_.integer(key("expert_shared_feed_forward_length"), 1, kMaxWidth)
              .value_or(rows_of_any_layer("mlp.shared_expert.gate_proj"));
    }
    write_dense_layers();
  }

  /// Writes what routers with scores of their own have: their scale, groups, shared experts.
  void write_scores(int64_t experts) {
    if (const auto scale = metadata_.number(key("expert_weights_scale"), 0.0, 1e9);
        scale && *scale != 0.0) {
      config_["routed_scaling_factor"] = *scale;
    }
    const auto groups = metadata_.integer(key("expert_group_count"), 0, experts);
    if (groups && *groups > 1) {
      config_["n_group"] = *groups;
      config_["topk_group"] =
          metadata_.integer(key("expert_group_used_count"), 1, *groups).value_or(*groups);
    }
    if (const auto shared = metadata_.integer(key("expert_shared_count"), 0, kMaxExperts)) {
      config_["n_shared_experts"] = *shared;
    }
  }

  void write_dense_layers() {
    OrderedJson dense_layers = OrderedJson::array();
    for (int64_t layer = 0; layer < layers_; ++layer) {
      const std::string prefix = "model.layers." + std::to_string(layer) + ".";
      if (tensor(prefix + std::string(architecture_.dense_gate) + ".weight") == nullptr) continue;
      if (tensor(prefix + std::string(architecture_.router) + ".weight") != nullptr) {
        throw_unsupported(metadata_.file() + ": layer " + std::to_string(layer) +
                          " has both 'ffn_gate_inp' and 'ffn_gate'; expected experts or a dense "
                          "block");
      }
      dense_layers.push_back(layer);
    }
    if (!dense_layers.empty()) config_["mlp_only_layers"] = std::move(dense_layers);
  }

  const GgufSource& source_;
  const GgufArchitecture& architecture_;
  const GgufMetadata& metadata_;
  OrderedJson& config_;
  const int64_t hidden_, layers_, context_;
  int64_t heads_ = 0, head_dim_ = 0;
};

void write_sizes(const GgufSource& source, OrderedJson& config) {
  const GgufMetadata& metadata = source.metadata;
  const TensorInfo* embedding = source.tensor("model.embed_tokens.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    throw_bad_file(metadata.file() + ": the tensor 'token_embd.weight' is " +
                   (embedding == nullptr ? "missing" : shape_text(embedding->shape)) +
                   "; expected [vocabulary, embedding_length]");
  }
  if (embedding->shape[0] > kMaxVocabulary) {
    throw_bad_file(metadata.file() + ": the tensor 'token_embd.weight' has " +
                   std::to_string(embedding->shape[0]) + " rows; expected at most " +
                   std::to_string(kMaxVocabulary));
  }
  const int64_t hidden = metadata.required_integer(source.key("embedding_length"), 1, kMaxWidth);
  int64_t layers = metadata.required_integer(source.key("block_count"), 1, kMaxLayers);
  const int64_t draft_layers =
      metadata.integer(source.key("nextn_predict_layers"), 0, layers - 1).value_or(0);
  layers -= draft_layers;
  const int64_t context = metadata.required_integer(source.key("context_length"), 1, kMaxPositions);
  config["vocab_size"] = embedding->shape[0];
  config["hidden_size"] = hidden;
  config["num_hidden_layers"] = layers;
  if (draft_layers > 0) config["num_nextn_predict_layers"] = draft_layers;
  config["max_position_embeddings"] = context;
  const std::string epsilon = source.key("attention.layer_norm_rms_epsilon");
  const auto value = metadata.number(epsilon, 1e-30, 1.0);
  if (!value) metadata.bad(epsilon, "a float above 0, at most 1");
  config["rms_norm_eps"] = *value;
  config["hidden_act"] = "silu";
  config["tie_word_embeddings"] = source.tensor("lm_head.weight") == nullptr;
  config["dtype"] = embedding->dtype == DType::kF16    ? "float16"
                    : embedding->dtype == DType::kBF16 ? "bfloat16"
                                                       : "float32";
}

void write_special_tokens(const GgufMetadata& metadata, OrderedJson& config) {
  const int64_t last_id = config["vocab_size"].get<int64_t>() - 1;
  for (const auto& [from, to] : {std::pair{"bos_token_id", "bos_token_id"},
                                 {"eos_token_id", "eos_token_id"},
                                 {"padding_token_id", "pad_token_id"}}) {
    const auto id = metadata.token_id(std::string("tokenizer.ggml.") + from, last_id);
    if (id) config[to] = *id;
  }
}

}  // namespace

std::string GgufSource::key(std::string_view name) const {
  return std::string(architecture.name) + "." + std::string(name);
}

const TensorInfo* GgufSource::tensor(const std::string& name) const {
  return find_tensor(tensors, name);
}

void write_decoder_fields(const GgufSource& source, OrderedJson& config) {
  DecoderWriter(source, config).write();
}

void write_biases(const GgufSource& source, OrderedJson& config) {
  const GgufArchitecture& architecture = source.architecture;
  const GgufMetadata& metadata = source.metadata;
  // A layer has all the biases of its form or none; the others have the same.
  const bool has_query_bias = source.tensor("model.layers.0.self_attn.q_proj.bias") != nullptr;
  const bool has_output_bias = source.tensor("model.layers.0.self_attn.o_proj.bias") != nullptr;
  for (const TensorInfo& info : source.tensors) {
    if (has_query_bias || !info.name.ends_with(".bias")) continue;
    throw_unsupported(metadata.file() + ": holds " + quote_text(info.name) +
                      ", but no 'blk.0.attn_q.bias'; expected the same biases in every layer");
  }
  if (architecture.has_output_bias) {
    if (has_query_bias != has_output_bias) {
      throw_unsupported(metadata.file() + ": the tensor 'blk.0." +
                        (has_query_bias ? "attn_output.bias" : "attn_q.bias") +
                        "' is missing; expected biases in all four attention matrices of " +
                        std::string(architecture.name) + ", or in none");
    }
    config["attention_bias"] = has_query_bias;
  } else if (!architecture.input_bias.empty()) {
    config[std::string(architecture.input_bias)] = has_query_bias;
  } else if (has_query_bias) {
    throw_unsupported(metadata.file() +
                      ": holds the tensor 'blk.0.attn_q.bias'; expected none in this "
                      "architecture");
  }
}

void refuse_yarn_values(const GgufSource& source) {
  const GgufMetadata& metadata = source.metadata;
  for (const char* name : {"rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"}) {
    if (metadata.number(source.key(name), 0.0, 1e6).value_or(1.0) != 1.0) {
      metadata.unsupported(source.key(name), "1 where no yarn scales");
    }
  }
  const std::string extrapolation = source.key("rope.scaling.yarn_ext_factor");
  if (metadata.number(extrapolation, -1.0, 1e6).value_or(0.0) > 0.0) {
    metadata.unsupported(extrapolation, "0 where no yarn scales");
  }
}

std::string gguf_config_json(const GgufSource& source) {
  refuse_other_models(source.architecture, source.metadata);
  OrderedJson config;
  config["architectures"] = {source.architecture.class_name};
  config["model_type"] = source.architecture.model_type;
  write_sizes(source, config);
  source.architecture.write_config(source, config);
  write_special_tokens(source.metadata, config);
  write_plain_values(config);
  return config.dump(2) + "\n";
}

std::string gguf_generation_config_json(const GgufMetadata& metadata) {
  // Tokens that end a turn end the text too; files name some of them in keys of their own, and
  // published chat models without such keys by their texts.
  const GgufArray* tokens = metadata.array("tokenizer.ggml.tokens", GgufType::kString);
  const int64_t last_id = tokens == nullptr ? UINT32_MAX : static_cast<int64_t>(tokens->count) - 1;
  std::map<std::string_view, int64_t> by_text;
  for (uint64_t id = 0; tokens != nullptr && id < tokens->count; ++id) {
    if (core::is_end_text(tokens->string(id))) {
      by_text.emplace(tokens->string(id), static_cast<int64_t>(id));
    }
  }
  std::set<int64_t> ends = core::find_end_ids<int64_t>([&](std::string_view text) {
    const auto found = by_text.find(text);
    return found == by_text.end() ? -1 : found->second;
  });
  for (const char* name : {"eos_token_id", "eot_token_id", "eom_token_id"}) {
    const auto id = metadata.token_id(std::string("tokenizer.ggml.") + name, last_id);
    if (id) ends.insert(*id);
  }
  OrderedJson json;
  if (!ends.empty()) json["eos_token_id"] = ends;
  // What converters keep of the publisher's generation_config.json.
  const auto temperature = metadata.number("general.sampling.temp", 0, 100);
  if (temperature) json["temperature"] = *temperature;
  const auto top_k = metadata.integer("general.sampling.top_k", -1, INT32_MAX);
  if (top_k) json["top_k"] = *top_k;
  const auto top_p = metadata.number("general.sampling.top_p", 0, 1);
  if (top_p) json["top_p"] = *top_p;
  if (json.empty()) return "";
  return json.dump(2) + "\n";
}

}  // namespace vitrine::checkpoint
