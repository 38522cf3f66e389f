// SPDX-License-Identifier: Apache-2.0
#include "model/decoder.h"

#include <cmath>

#include "ops/decoder_ops.h"

namespace vitrine::model {

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
    graph_.head_dim = config.stored_key_width();
    graph_.value_dim = config.kv_lora_rank;
  }

  ops::Graph build() {
    const int64_t hidden = config_.hidden_size;
    residual_ = graph_.add_value("residual", hidden);
    normed_ = graph_.add_value("normed", hidden);
    query_ = graph_.add_value("query", config_.num_heads * config_.head_dim);
    if (config_.is_latent()) {
      if (config_.q_lora_rank > 0) {
        query_latent_ = graph_.add_value("query_latent", config_.q_lora_rank);
        normed_latent_ = graph_.add_value("normed_latent", config_.q_lora_rank);
      }
      key_ = graph_.add_value("latent", config_.stored_key_width());
    } else {
      key_ = graph_.add_value("key", config_.num_kv_heads * config_.head_dim);
      value_ = graph_.add_value("value", config_.num_kv_heads * config_.head_dim);
    }
    const int64_t value_dim = config_.is_latent() ? config_.v_head_dim : config_.head_dim;
    attended_ = graph_.add_value("attended", config_.num_heads * value_dim);
    ops::EmbedParameters embed;
    embed.table = "model.embed_tokens";
    embed.multiplier = config_.embedding_multiplier;
    graph_.add("embed", -1, {}, {residual_}, std::move(embed));
    for (int layer = 0; layer < graph_.num_layers; ++layer) {
      layer_ = layer;
      add_norm(name("input_layernorm.weight"), normed_, /*enters_layer=*/true);
      if (config_.is_latent()) {
        add_latent_attention();
      } else {
        add_attention();
      }
      add_attended();
      if (config_.is_sparse_layer(layer)) {
        add_experts();
      } else {
        add_dense();
      }
    }
    layer_ = -1;
    const ValueId rows = graph_.add_value("head_input", hidden, /*per_row=*/true);
    const size_t norm = add_norm("model.norm.weight", rows, /*enters_layer=*/true);
    ops::HeadParameters head;
    head.matrix = config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head";
    head.multiplier = 1.0 / config_.logits_scaling;
    graph_.heads.push_back({graph_.add("head", -1, {rows}, {}, std::move(head)), rows, norm});
    return std::move(graph_);
  }

 private:
  std::string name(const std::string& part) const {
    return "model.layers." + std::to_string(layer_) + "." + part;
  }

  size_t add_norm(const std::string& weight, ValueId output, bool enters_layer) {
    ops::NormParameters norm;
    norm.weight = weight;
    norm.eps = config_.rms_norm_eps;
    norm.enters_layer = enters_layer;
    return graph_.add("rms_norm", layer_, {residual_}, {output}, std::move(norm));
  }

  void add_attention() {
    ops::QkvParameters qkv;
    const char* const parts[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    for (size_t i = 0; i < qkv.matrices.size(); ++i) {
      qkv.matrices[i] = name(parts[i]);
      if (traits_.qkv_bias) qkv.biases[i] = qkv.matrices[i] + ".bias";
    }
    graph_.add("qkv", layer_, {normed_}, {query_, key_, value_}, std::move(qkv));

    const double usual = traits_.attention_scale > 0
                             ? traits_.attention_scale
                             : 1.0 / std::sqrt(static_cast<double>(config_.head_dim));
    ops::AttentionParameters attention;
    attention.scale = config_.attention_multiplier.value_or(usual);
    attention.eps = config_.rms_norm_eps;
    attention.clip = config_.clip_qkv.value_or(0.0);
    if (!config_.windows.empty()) attention.window = config_.windows[static_cast<size_t>(layer_)];
    const bool rotates = config_.rotates.empty() || config_.rotates[static_cast<size_t>(layer_)];
    attention.rotary_dim = rotates ? config_.rotary_width() : 0;
    attention.rotates_neighbours = traits_.rotates_neighbours;
    if (traits_.sinks) attention.sinks = name("self_attn.sinks");
    if (traits_.query_key_norm) {
      attention.query_norm = name("self_attn.q_norm.weight");
      attention.key_norm = name("self_attn.k_norm.weight");
      attention.norms_whole_row = traits_.norm_whole_row;
    }
    graph_.add("attention", layer_, {query_, key_, value_}, {attended_}, std::move(attention));
  }

  /// in -> out, with a bias where attention has any.
  void add_projection(const std::string& module, ValueId in, ValueId out, bool may_have_bias) {
    ops::ProjectParameters project;
    project.matrix = name(module);
    if (may_have_bias && config_.attention_bias) project.bias = project.matrix + ".bias";
    project.adds_to_residual = false;
    graph_.add("project", layer_, {in}, {out}, std::move(project));
  }

  void add_latent_attention() {
    // Whatever rms_norm_eps is.
    constexpr double kEps = 1e-6;
    if (config_.q_lora_rank > 0) {
      add_projection("self_attn.q_a_proj", normed_, query_latent_, /*may_have_bias=*/true);
      ops::NormParameters norm;
      norm.weight = name("self_attn.q_a_layernorm.weight");
      norm.eps = kEps;
      graph_.add("rms_norm", layer_, {query_latent_}, {normed_latent_}, std::move(norm));
      add_projection("self_attn.q_b_proj", normed_latent_, query_, /*may_have_bias=*/false);
    } else {
      add_projection("self_attn.q_proj", normed_, query_, /*may_have_bias=*/false);
    }
    add_projection("self_attn.kv_a_proj_with_mqa", normed_, key_, /*may_have_bias=*/true);
    ops::LatentAttentionParameters attention;
    attention.keys_and_values = {name("self_attn.kv_b_proj"), config_.num_heads,
                                 config_.qk_nope_head_dim, config_.v_head_dim,
                                 config_.kv_lora_rank};
    attention.norm = name("self_attn.kv_a_layernorm.weight");
    attention.eps = kEps;
    attention.scale =
        config_.rope_scaling.latent_scale() / std::sqrt(static_cast<double>(config_.head_dim));
    attention.rotary_dim = config_.rotary_dim;
    attention.rotates_neighbours = config_.rope_interleave;
    graph_.add("latent_attention", layer_, {query_, key_}, {attended_}, std::move(attention));
  }

  /// What attention gives goes back to the residual stream.
  void add_attended() {
    ops::ProjectParameters project;
    project.matrix = name("self_attn.o_proj");
    if (traits_.output_bias) project.bias = name("self_attn.o_proj.bias");
    project.multiplier = config_.residual_multiplier;
    graph_.add("project", layer_, {attended_, residual_}, {residual_}, std::move(project));
    add_norm(name("post_attention_layernorm.weight"), normed_, /*enters_layer=*/false);
  }

  ops::DenseParameters dense(const std::string& block, int64_t intermediate) const {
    ops::DenseParameters dense;
    dense.gate = name(block + ".gate_proj");
    dense.up = name(block + ".up_proj");
    dense.down = name(block + ".down_proj");
    dense.intermediate = intermediate;
    return dense;
  }

  void add_dense() {
    ops::DenseParameters own = dense("mlp", config_.intermediate_size);
    own.multiplier = config_.residual_multiplier;
    own.adds_to_residual = true;
    graph_.add("dense_ffn", layer_, {normed_, residual_}, {residual_}, std::move(own));
  }

  void add_experts() {
    if (slots_ < 0) {
      slots_ =
          graph_.add_value("expert_slots", config_.num_experts_per_token * config_.hidden_size);
    }
    ops::RouterParameters router;
    router.matrix = name(traits_.router);
    if (traits_.router_bias) router.bias = router.matrix + ".bias";
    router.shape = {config_.num_experts, config_.num_experts_per_token};
    router.normalizes = traits_.normalize_top_k;
    router.softmax_after_top_k = traits_.softmax_after_top_k;
    router.score = traits_.score;
    if (!traits_.correction.empty()) router.correction = name(traits_.correction);
    router.groups = config_.router_groups;
    router.chosen_groups = config_.router_chosen_groups;
    router.sum_epsilon = traits_.sum_epsilon;
    router.group_score_adds_two = !traits_.group_score_is_best;
    router.least_sum = traits_.least_sum;
    router.scale = config_.routed_scaling_factor;
    graph_.add("router", layer_, {normed_}, {}, std::move(router));
    ops::ExpertsParameters experts;
    experts.prefix = name(traits_.block + ".experts.");
    experts.gate = traits_.gate;
    experts.up = traits_.up;
    experts.down = traits_.down;
    experts.experts = config_.num_experts;
    experts.top_k = config_.num_experts_per_token;
    experts.intermediate = config_.moe_intermediate_size;
    experts.gating = traits_.gating;
    experts.has_biases = traits_.expert_biases;
    graph_.add("experts", layer_, {normed_}, {slots_}, std::move(experts));
    ops::CombineParameters combine;
    combine.multiplier = config_.residual_multiplier;
    std::vector<ValueId> combined = {slots_, normed_};
    if (!traits_.shared_block.empty() && config_.shared_expert_intermediate_size > 0) {
      if (shared_ < 0) shared_ = graph_.add_value("shared_expert", config_.hidden_size);
      graph_.add("dense_ffn", layer_, {normed_}, {shared_},
                 dense(traits_.shared_block, config_.shared_expert_intermediate_size));
      combined.push_back(shared_);
      if (!traits_.shared_gate.empty()) combine.shared_gate = name(traits_.shared_gate);
    }
    graph_.add("combine", layer_, std::move(combined), {residual_}, std::move(combine));
  }

  const ModelConfig& config_;
  const DecoderTraits& traits_;
  ops::Graph graph_;
  int layer_ = -1;
  ValueId residual_ = -1, normed_ = -1, query_ = -1, key_ = -1, value_ = -1, attended_ = -1;
  ValueId query_latent_ = -1, normed_latent_ = -1;
  ValueId slots_ = -1, shared_ = -1;
};

}  // namespace

void set_deepseek_routing(const ModelConfig& config, DecoderTraits& traits) {
  traits.score = ops::RouterParameters::Score::kSigmoid;
  traits.correction = "mlp.gate.e_score_correction_bias";
  traits.normalize_top_k = config.norm_topk_prob.value_or(true);
  traits.sum_epsilon = 1e-20;
  traits.shared_block = "mlp.shared_experts";
}

void set_mixtral_names(DecoderTraits& traits) {
  traits.block = "block_sparse_moe";
  traits.router = "block_sparse_moe.gate";
  traits.gate = "w1";
  traits.up = "w3";
  traits.down = "w2";
}

ops::Graph build_decoder(const ModelConfig& config, const DecoderTraits& traits) {
  return DecoderBuilder(config, traits).build();
}

}  // namespace vitrine::model
