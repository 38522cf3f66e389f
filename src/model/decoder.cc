// SPDX-License-Identifier: Apache-2.0
#include "model/decoder.h"

#include <cmath>

#include "model/named_vector.h"
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
    if (!config.linear_layers.empty()) {
      for (int64_t layer = 0; layer < config.num_layers; ++layer) {
        graph_.state_floats.push_back(config.is_linear_layer(layer) ? state_floats(config) : 0);
      }
    }
  }

  ops::Graph build() {
    const int64_t hidden = config_.hidden_size;
    residual_ = graph_.add_value("residual", hidden);
    normed_ = traits_.norms_outputs ? residual_ : graph_.add_value("normed", hidden);
    added_ = traits_.norms_outputs ? graph_.add_value("branch", hidden) : residual_;
    query_ = graph_.add_value("query",
                              config_.num_heads * config_.head_dim * (traits_.output_gate ? 2 : 1));
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
    if (config_.has_convolutions()) {
      linear_in_ = {graph_.add_value("convolution_input", 3 * hidden)};
      linear_out_ = graph_.add_value("convolved", hidden);
    } else if (graph_.has_state()) {
      add_linear_values();
    }
    ops::EmbedParameters embed;
    embed.table = "model.embed_tokens";
    embed.multiplier = config_.embedding_multiplier;
    graph_.add("embed", -1, {}, {residual_}, std::move(embed));
    for (int layer = 0; layer < graph_.num_layers; ++layer) {
      layer_ = layer;
      enter_layer();
      if (config_.is_linear_layer(layer)) {
        add_stateful();
      } else {
        if (config_.is_latent()) {
          add_latent_attention();
        } else {
          add_attention();
        }
        add_attended(attended_, traits_.output, traits_.output_bias);
      }
      if (config_.is_sparse_layer(layer)) {
        add_experts();
      } else {
        add_dense();
      }
      if (traits_.norms_outputs) {
        add_post_norm("post_feedforward_layernorm.weight", AuditLayout::Term::Kind::kDense);
      }
    }
    layer_ = -1;
    const ValueId rows = graph_.add_value("head_input", hidden, /*per_row=*/true);
    const size_t norm = add_norm(traits_.final_norm + ".weight", rows, /*enters_layer=*/true);
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

  std::string norm_name(const std::string& weight) const {
    return traits_.norms_add_one ? one_plus(weight) : weight;
  }

  size_t add_norm(const std::string& weight, ValueId output, bool enters_layer) {
    ops::NormParameters norm;
    norm.weight = norm_name(weight);
    norm.eps = config_.rms_norm_eps;
    norm.enters_layer = enters_layer;
    return graph_.add("rms_norm", layer_, {residual_}, {output}, std::move(norm));
  }

  void enter_layer() {
    if (!traits_.norms_outputs) {
      add_norm(name(traits_.input_norm + ".weight"), normed_, /*enters_layer=*/true);
      return;
    }
    ops::NormParameters measured;
    measured.eps = config_.rms_norm_eps;
    measured.enters_layer = true;
    graph_.add("rms_norm", layer_, {residual_}, {}, std::move(measured));
  }

  void add_post_norm(const std::string& weight, AuditLayout::Term::Kind part) {
    ops::PostNormParameters post;
    post.term = part;
    post.weight = name(weight);
    post.eps = config_.rms_norm_eps;
    graph_.add("post_norm", layer_, {added_, residual_}, {residual_}, std::move(post));
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
    attention.has_output_gate = traits_.output_gate;
    if (traits_.sinks) attention.sinks = name("self_attn.sinks");
    if (traits_.query_key_norm) {
      attention.query_norm = norm_name(name(traits_.query_norm + ".weight"));
      attention.key_norm = norm_name(name(traits_.key_norm + ".weight"));
      attention.norms_whole_row = traits_.norm_whole_row;
    }
    graph_.add("attention", layer_, {query_, key_, value_}, {attended_}, std::move(attention));
  }

  /// in -> out.
  void add_projection(const std::string& module, ValueId in, ValueId out, bool has_bias,
                      bool takes_adapters = true, bool steers_state = false) {
    ops::ProjectParameters project;
    project.matrix = name(module);
    if (has_bias) project.bias = project.matrix + ".bias";
    project.adds_to_residual = false;
    project.takes_adapters = takes_adapters;
    project.steers_state = steers_state;
    graph_.add("project", layer_, {in}, {out}, std::move(project));
  }

  void add_latent_attention() {
    // Whatever rms_norm_eps is.
    constexpr double kEps = 1e-6;
    if (config_.q_lora_rank > 0) {
      add_projection("self_attn.q_a_proj", normed_, query_latent_, config_.attention_bias);
      ops::NormParameters norm;
      norm.weight = name("self_attn.q_a_layernorm.weight");
      norm.eps = kEps;
      graph_.add("rms_norm", layer_, {query_latent_}, {normed_latent_}, std::move(norm));
      add_projection("self_attn.q_b_proj", normed_latent_, query_, /*has_bias=*/false);
    } else {
      add_projection("self_attn.q_proj", normed_, query_, /*has_bias=*/false);
    }
    add_projection("self_attn.kv_a_proj_with_mqa", normed_, key_, config_.attention_bias);
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

  void add_linear_values() {
    const ops::GatedDeltaShape shape = linear_shape(config_);
    const int64_t values = shape.value_heads * shape.value_dim;
    const auto add = [this](const std::string& name, int64_t width, bool steers_state = false) {
      linear_in_.push_back(graph_.add_value("linear_" + name, width));
      linear_projections_.push_back({"linear_attn.in_proj_" + name, steers_state});
    };
    if (traits_.groups_linear_projections) {
      add("qkvz", shape.channels() + values);
    } else {
      add("qkv", shape.channels());
      add("z", values);
    }
    if (traits_.groups_linear_strengths) {
      add("ba", 2 * shape.value_heads, /*steers_state=*/true);
    } else {
      add("b", shape.value_heads, /*steers_state=*/true);
      add("a", shape.value_heads, /*steers_state=*/true);
    }
    linear_out_ = graph_.add_value("linear_attended", values);
  }

  void add_stateful() {
    if (config_.has_convolutions()) return add_convolution();
    add_linear_attention();
  }

  void add_linear_attention() {
    for (size_t i = 0; i < linear_projections_.size(); ++i) {
      add_projection(linear_projections_[i].module, normed_, linear_in_[i], /*has_bias=*/false,
                     /*takes_adapters=*/!traits_.tiles_linear_heads,
                     linear_projections_[i].steers_state);
    }
    ops::GatedDeltaParameters own;
    own.shape = linear_shape(config_);
    own.is_grouped = traits_.groups_linear_projections;
    own.groups_strengths = traits_.groups_linear_strengths;
    own.is_tiled = traits_.tiles_linear_heads;
    own.convolution = name("linear_attn.conv1d.weight");
    own.rate = config_.linear_layout == LinearLayout::kPublished
                   ? minus_exp(name("linear_attn.A_log"))
                   : name("linear_attn.A");
    own.bias = name("linear_attn.dt_bias");
    own.norm = name("linear_attn.norm.weight");
    own.eps = config_.rms_norm_eps;
    graph_.add("gated_delta", layer_, linear_in_, {linear_out_}, std::move(own));
    add_attended(linear_out_, "linear_attn.out_proj", /*has_bias=*/false);
  }

  void add_convolution() {
    const bool has_biases = config_.convolution_bias;
    add_projection("conv.in_proj", normed_, linear_in_[0], has_biases);
    ops::ShortConvolutionParameters own;
    own.taps = config_.convolution_taps;
    own.weight = name("conv.conv.weight");
    if (has_biases) own.bias = name("conv.conv.bias");
    graph_.add("short_convolution", layer_, linear_in_, {linear_out_}, std::move(own));
    add_attended(linear_out_, "conv.out_proj", has_biases);
  }

  /// What attention gives goes back to the residual stream.
  void add_attended(ValueId attended, const std::string& module, bool has_bias) {
    ops::ProjectParameters project;
    project.matrix = name(module);
    if (has_bias) project.bias = project.matrix + ".bias";
    project.multiplier = config_.residual_multiplier;
    project.takes_adapters = attended == attended_ || !traits_.tiles_linear_heads;
    if (traits_.norms_outputs) {
      project.adds_to_residual = false;
      graph_.add("project", layer_, {attended}, {added_}, std::move(project));
      return add_post_norm(traits_.block_norm + ".weight", AuditLayout::Term::Kind::kAttention);
    }
    graph_.add("project", layer_, {attended, residual_}, {residual_}, std::move(project));
    add_norm(name(traits_.block_norm + ".weight"), normed_, /*enters_layer=*/false);
  }

  ops::DenseParameters dense(const std::string& block, int64_t intermediate) const {
    ops::DenseParameters dense;
    dense.gate = name(block + "." + traits_.gate);
    dense.up = name(block + "." + traits_.up);
    dense.down = name(block + "." + traits_.down);
    dense.intermediate = intermediate;
    return dense;
  }

  void add_dense() {
    ops::DenseParameters own = dense(traits_.dense_block, config_.intermediate_size);
    own.multiplier = config_.residual_multiplier;
    own.adds_to_residual = !traits_.norms_outputs;
    std::vector<ValueId> inputs = {normed_};
    if (own.adds_to_residual) inputs.push_back(residual_);
    graph_.add("dense_ffn", layer_, std::move(inputs), {added_}, std::move(own));
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
    combine.adds_to_residual = !traits_.norms_outputs;
    std::vector<ValueId> combined = {slots_, normed_};
    if (!traits_.shared_block.empty() && config_.shared_expert_intermediate_size > 0) {
      if (shared_ < 0) shared_ = graph_.add_value("shared_expert", config_.hidden_size);
      graph_.add("dense_ffn", layer_, {normed_}, {shared_},
                 dense(traits_.shared_block, config_.shared_expert_intermediate_size));
      combined.push_back(shared_);
      if (!traits_.shared_gate.empty()) combine.shared_gate = name(traits_.shared_gate);
    }
    graph_.add("combine", layer_, std::move(combined), {added_}, std::move(combine));
  }

  const ModelConfig& config_;
  const DecoderTraits& traits_;
  ops::Graph graph_;
  int layer_ = -1;
  ValueId residual_ = -1, normed_ = -1, query_ = -1, key_ = -1, value_ = -1, attended_ = -1;
  ValueId added_ = -1;  // what blocks write: the stream, or what is normed before it goes there
  std::vector<ValueId> linear_in_;
  struct LinearProjection {
    std::string module;
    bool steers_state = false;
  };
  std::vector<LinearProjection> linear_projections_;  // that make these
  ValueId linear_out_ = -1;
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

void set_qwen3_next_layers(const ModelConfig& config, DecoderTraits& traits) {
  traits.query_key_norm = traits.output_gate = true;
  traits.norms_add_one = config.linear_layout == LinearLayout::kPublished;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  traits.shared_block = "mlp.shared_expert";
  traits.shared_gate = "mlp.shared_expert_gate";
}

void set_mixtral_names(DecoderTraits& traits) {
  traits.block = "block_sparse_moe";
  traits.router = "block_sparse_moe.gate";
  traits.gate = "w1";
  traits.up = "w3";
  traits.down = "w2";
}

ops::GatedDeltaShape linear_shape(const ModelConfig& config) {
  return {config.linear_key_heads, config.linear_value_heads, config.linear_key_dim,
          config.linear_value_dim, config.linear_taps};
}

int64_t state_floats(const ModelConfig& config) {
  return config.has_convolutions() ? (config.convolution_taps - 1) * config.hidden_size
                                   : linear_shape(config).state_floats();
}

ops::Graph build_decoder(const ModelConfig& config, const DecoderTraits& traits) {
  return DecoderBuilder(config, traits).build();
}

}  // namespace vitrine::model
