// SPDX-License-Identifier: Apache-2.0
#include "model/decoder.h"

#include <cmath>

namespace vitrine::model {

using ops::OpNode;
using ops::ValueId;

namespace {

class DecoderBuilder {
 public:
  DecoderBuilder(const ModelConfig& config, const DecoderTraits& traits)
      : config_(config), traits_(traits) {
    graph_.num_layers = static_cast<int>(config.num_layers);
    graph_.vocab_size = config.vocab_size;
    graph_.num_heads = config.num_heads;
    graph_.num_kv_heads = config.num_kv_heads;
    graph_.head_dim = config.head_dim;
  }

  ops::Graph build() {
    const int64_t hidden = config_.hidden_size;
    residual_ = graph_.add_value("residual", hidden);
    normed_ = graph_.add_value("normed", hidden);
    query_ = graph_.add_value("query", config_.num_heads * config_.head_dim);
    key_ = graph_.add_value("key", config_.num_kv_heads * config_.head_dim);
    value_ = graph_.add_value("value", config_.num_kv_heads * config_.head_dim);
    attended_ = graph_.add_value("attended", config_.num_heads * config_.head_dim);
    graph_.add({.type = "embed",
                .outputs = {residual_},
                .weights = {{"table", "model.embed_tokens"}},
                .attributes = {{"multiplier", config_.embedding_multiplier}}});
    for (int layer = 0; layer < graph_.num_layers; ++layer) {
      layer_ = layer;
      add_attention();
      if (config_.is_sparse_layer(layer)) {
        add_experts();
      } else {
        add_dense();
      }
    }
    layer_ = -1;
    const ValueId rows = graph_.add_value("head_input", hidden, /*per_row=*/true);
    add_norm("model.norm.weight", rows, /*audit=*/false);
    graph_.add(
        {.type = "head",
         .inputs = {rows},
         .weights = {{"weight", config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head"}},
         .attributes = {{"multiplier", 1.0 / config_.logits_scaling}}});
    return std::move(graph_);
  }

 private:
  std::string name(const std::string& part) const {
    return "model.layers." + std::to_string(layer_) + "." + part;
  }

  void add_norm(const std::string& weight, ValueId output, bool audit) {
    graph_.add({.type = "rms_norm",
                .layer = layer_,
                .inputs = {residual_},
                .outputs = {output},
                .weights = {{"weight", weight}},
                .attributes = {{"eps", config_.rms_norm_eps}, {"audit", audit ? 1.0 : 0.0}}});
  }

  void add_attention() {
    add_norm(name("input_layernorm.weight"), normed_, /*audit=*/true);
    OpNode qkv{.type = "qkv",
               .layer = layer_,
               .inputs = {normed_},
               .outputs = {query_, key_, value_},
               .weights = {{"q", name("self_attn.q_proj")},
                           {"k", name("self_attn.k_proj")},
                           {"v", name("self_attn.v_proj")}},
               .attributes = {}};
    if (traits_.qkv_bias) {
      qkv.weights["q_bias"] = name("self_attn.q_proj.bias");
      qkv.weights["k_bias"] = name("self_attn.k_proj.bias");
      qkv.weights["v_bias"] = name("self_attn.v_proj.bias");
    }
    graph_.add(std::move(qkv));

    const double usual = traits_.attention_scale > 0
                             ? traits_.attention_scale
                             : 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
    const double scale = config_.attention_multiplier.value_or(usual);
    OpNode attention{.type = "attention",
                     .layer = layer_,
                     .inputs = {query_, key_, value_},
                     .outputs = {attended_},
                     .weights = {},
                     .attributes = {{"scale", scale},
                                    {"eps", config_.rms_norm_eps},
                                    {"clip", config_.clip_qkv.value_or(0.0)}}};
    if (traits_.query_key_norm) {
      attention.weights["q_norm"] = name("self_attn.q_norm.weight");
      attention.weights["k_norm"] = name("self_attn.k_norm.weight");
      attention.attributes["norm_whole_row"] = traits_.norm_whole_row ? 1.0 : 0.0;
    }
    graph_.add(std::move(attention));

    OpNode project{.type = "project",
                   .layer = layer_,
                   .inputs = {attended_, residual_},
                   .outputs = {residual_},
                   .weights = {{"weight", name("self_attn.o_proj")}},
                   .attributes = {{"multiplier", config_.residual_multiplier}}};
    if (traits_.output_bias) project.weights["bias"] = name("self_attn.o_proj.bias");
    graph_.add(std::move(project));
    add_norm(name("post_attention_layernorm.weight"), normed_, /*audit=*/false);
  }

  void add_dense() {
    graph_.add({.type = "dense_ffn",
                .layer = layer_,
                .inputs = {normed_, residual_},
                .outputs = {residual_},
                .weights = {{"gate", name("mlp.gate_proj")},
                            {"up", name("mlp.up_proj")},
                            {"down", name("mlp.down_proj")}},
                .attributes = {{"intermediate", static_cast<double>(config_.intermediate_size)},
                               {"multiplier", config_.residual_multiplier},
                               {"residual", 1.0}}});
  }

  void add_experts() {
    const auto experts = static_cast<double>(config_.num_experts);
    const auto top_k = static_cast<double>(config_.num_experts_per_token);
    if (slots_ < 0) {
      slots_ =
          graph_.add_value("expert_slots", config_.num_experts_per_token * config_.hidden_size);
    }
    graph_.add({.type = "router",
                .layer = layer_,
                .inputs = {normed_},
                .outputs = {},
                .weights = {{"weight", name(traits_.router)}},
                .attributes = {{"experts", experts},
                               {"top_k", top_k},
                               {"normalize", traits_.normalize_top_k ? 1.0 : 0.0},
                               {"softmax_after_top_k", traits_.softmax_after_top_k ? 1.0 : 0.0}}});
    graph_.add(
        {.type = "experts",
         .layer = layer_,
         .inputs = {normed_},
         .outputs = {slots_},
         .weights = {{"prefix", name(traits_.block + ".experts.")},
                     {"gate", traits_.gate},
                     {"up", traits_.up},
                     {"down", traits_.down}},
         .attributes = {{"experts", experts},
                        {"intermediate", static_cast<double>(config_.moe_intermediate_size)}}});
    OpNode combine{.type = "combine",
                   .layer = layer_,
                   .inputs = {slots_, normed_},
                   .outputs = {residual_},
                   .weights = {},
                   .attributes = {{"multiplier", config_.residual_multiplier}}};
    if (traits_.shared_expert) {
      if (shared_ < 0) shared_ = graph_.add_value("shared_expert", config_.hidden_size);
      graph_.add({.type = "dense_ffn",
                  .layer = layer_,
                  .inputs = {normed_},
                  .outputs = {shared_},
                  .weights = {{"gate", name("mlp.shared_expert.gate_proj")},
                              {"up", name("mlp.shared_expert.up_proj")},
                              {"down", name("mlp.shared_expert.down_proj")}},
                  .attributes = {{"intermediate",
                                  static_cast<double>(config_.shared_expert_intermediate_size)}}});
      combine.inputs.push_back(shared_);
      combine.weights["shared_gate"] = name("mlp.shared_expert_gate");
    }
    graph_.add(std::move(combine));
  }

  const ModelConfig& config_;
  const DecoderTraits& traits_;
  ops::Graph graph_;
  int layer_ = -1;
  ValueId residual_ = -1, normed_ = -1, query_ = -1, key_ = -1, value_ = -1, attended_ = -1;
  ValueId slots_ = -1, shared_ = -1;
};

}  // namespace

ops::Graph build_decoder(const ModelConfig& config, const DecoderTraits& traits) {
  return DecoderBuilder(config, traits).build();
}

}  // namespace vitrine::model
