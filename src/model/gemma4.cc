// SPDX-License-Identifier: Apache-2.0
// Gemma 4 (Google 2026), the text model: layers of two kinds, which differ in heads and rotary
// frequencies; blocks whose outputs are normed before they are added; experts beside a dense block;
// in the E form a vector for each token and layer, and last layers that read others' keys and
// values.
#include <cmath>

#include "model/architecture.h"
#include "model/gemma4.h"
#include "ops/decoder_ops.h"

namespace vitrine::model {
namespace {

using ops::ValueId;
using Part = AuditLayout::Term::Kind;

constexpr kernels::Gating kGelu{kernels::Gating::Kind::kGeluTanh};

class Gemma4Builder {
 public:
  explicit Gemma4Builder(const ModelConfig& config)
      : config_(config), own_(config.own_fields<Gemma4Fields>()) {
    graph_.num_layers = static_cast<int>(config.num_layers);
    graph_.vocab_size = config.vocab_size;
    graph_.num_heads = config.num_heads;
    graph_.num_kv_heads = config.num_kv_heads;
    graph_.head_dim = config.head_dim;
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      graph_.kv_shapes.push_back({config.layer_kv_heads(layer), config.layer_head_dim(layer),
                                  static_cast<int>(config.kv_source(layer))});
    }
  }

  ops::Graph build() {
    const int64_t hidden = config_.hidden_size;
    residual_ = graph_.add_value("residual", hidden);
    normed_ = graph_.add_value("normed", hidden);
    branch_ = graph_.add_value("branch", hidden);
    ops::EmbedParameters embed;
    embed.table = "model.embed_tokens";
    embed.multiplier = config_.embedding_multiplier;
    graph_.add("embed", -1, {}, {residual_}, std::move(embed));
    if (own_.per_layer_input_size > 0) add_layer_inputs();
    for (layer_ = 0; layer_ < graph_.num_layers; ++layer_) {
      add_norm("input_layernorm.weight", normed_, /*enters_layer=*/true);
      add_attention();
      add_post_norm("post_attention_layernorm.weight", Part::kAttention);
      add_feed_forward();
      if (own_.per_layer_input_size > 0) add_layer_input();
    }
    layer_ = -1;
    const ValueId rows = graph_.add_value("head_input", hidden, /*per_row=*/true);
    ops::NormParameters norm;
    norm.weight = "model.norm.weight";
    norm.eps = config_.rms_norm_eps;
    norm.enters_layer = true;
    const size_t final_norm = graph_.add("rms_norm", -1, {residual_}, {rows}, std::move(norm));
    ops::HeadParameters head;
    head.matrix = config_.tie_word_embeddings ? "model.embed_tokens" : "lm_head";
    head.soft_cap = own_.final_logit_softcapping;
    graph_.heads.push_back({graph_.add("head", -1, {rows}, {}, std::move(head)), rows, final_norm});
    return std::move(graph_);
  }

 private:
  std::string name(const std::string& part) const {
    return "model.layers." + std::to_string(layer_) + "." + part;
  }

  /// Returns the value of that name and width; layers of both kinds have their own.
  ValueId value(const std::string& name, int64_t width) {
    for (size_t i = 0; i < graph_.values.size(); ++i) {
      const ops::Value& known = graph_.values[i];
      if (known.name == name && known.width == width) return static_cast<ValueId>(i);
    }
    return graph_.add_value(name, width);
  }

  void add_norm(const std::string& weight, ValueId out, bool enters_layer, double scale = 1) {
    ops::NormParameters norm;
    if (!weight.empty()) norm.weight = name(weight);
    norm.weight_scale = scale;
    norm.eps = config_.rms_norm_eps;
    norm.enters_layer = enters_layer;
    graph_.add("rms_norm", layer_, {residual_}, {out}, std::move(norm));
  }

  /// Adds the norm behind a block; behind the last one of a layer (`is_last`) its scalar follows.
  void add_post_norm(const std::string& weight, Part part, bool is_last = false,
                     std::array<std::string, 2> inner = {}, ValueId second = -1) {
    ops::PostNormParameters post;
    post.term = part;
    post.weight = name(weight);
    post.eps = config_.rms_norm_eps;
    if (is_last) post.scalar = name("layer_scalar");
    std::vector<ValueId> inputs = {branch_};
    if (second >= 0) {
      for (size_t i = 0; i < inner.size(); ++i) post.inner[i] = name(inner[i]);
      inputs.push_back(second);
    }
    inputs.push_back(residual_);
    graph_.add("post_norm", layer_, std::move(inputs), {residual_}, std::move(post));
  }

  void add_projection(const std::string& matrix, ValueId in, ValueId out, bool has_bias = false) {
    ops::ProjectParameters project;
    project.matrix = matrix;
    if (has_bias) project.bias = matrix + ".bias";
    project.adds_to_residual = false;
    graph_.add("project", layer_, {in}, {out}, std::move(project));
  }

  void add_attention() {
    const ops::KvShape shape = graph_.kv_shape(layer_);
    const bool is_global = config_.is_global_layer(layer_);
    const bool has_keys = shape.source == layer_;
    const ValueId query = value("query", config_.num_heads * shape.head_dim);
    const ValueId attended = value("attended", config_.num_heads * shape.head_dim);
    std::vector<ValueId> inputs = {query};
    if (has_keys) {
      inputs.push_back(value("key", shape.kv_heads * shape.head_dim));
      inputs.push_back(value("value", shape.kv_heads * shape.head_dim));
      const bool takes_keys = is_global && own_.values_from_keys;
      ops::QkvParameters qkv;
      qkv.matrices = {name("self_attn.q_proj"), name("self_attn.k_proj"),
                      name(takes_keys ? "self_attn.k_proj" : "self_attn.v_proj")};
      for (size_t i = 0; config_.attention_bias && i < qkv.matrices.size(); ++i) {
        qkv.biases[i] = qkv.matrices[i] + ".bias";
      }
      graph_.add("qkv", layer_, {normed_}, inputs, std::move(qkv));
    } else {
      add_projection(name("self_attn.q_proj"), normed_, query, config_.attention_bias);
    }
    ops::AttentionParameters attention;
    attention.scale = 1.0;
    attention.eps = config_.rms_norm_eps;
    attention.query_norm = name("self_attn.q_norm.weight");
    if (has_keys) attention.key_norm = name("self_attn.k_norm.weight");
    attention.norms_values = true;
    if (!config_.windows.empty()) attention.window = config_.windows[static_cast<size_t>(layer_)];
    attention.rotary_dim = shape.head_dim;
    attention.is_sliding_kind = !is_global;
    graph_.add("attention", layer_, std::move(inputs), {attended}, std::move(attention));
    add_projection(name("self_attn.o_proj"), attended, branch_, config_.attention_bias);
  }

  void add_feed_forward() {
    const bool is_last = own_.per_layer_input_size == 0;
    const bool is_wide = own_.double_wide_mlp && graph_.kv_shape(layer_).source != layer_;
    add_norm("pre_feedforward_layernorm.weight", normed_, /*enters_layer=*/false);
    ops::DenseParameters dense;
    dense.gate = name("mlp.gate_proj");
    dense.up = name("mlp.up_proj");
    dense.down = name("mlp.down_proj");
    dense.intermediate = config_.intermediate_size * (is_wide ? 2 : 1);
    dense.gating = kGelu;
    graph_.add("dense_ffn", layer_, {normed_}, {branch_}, std::move(dense));
    if (config_.num_experts == 0) {
      return add_post_norm("post_feedforward_layernorm.weight", Part::kDense, is_last);
    }
    add_post_norm("post_feedforward_layernorm.weight", Part::kDense, is_last,
                  {"post_feedforward_layernorm_1.weight", "post_feedforward_layernorm_2.weight"},
                  add_experts());
  }

  ValueId add_experts() {
    const int64_t hidden = config_.hidden_size;
    const ValueId router_input = value("router_input", hidden);
    add_norm("router.scale", router_input, /*enters_layer=*/false,
             1.0 / std::sqrt(static_cast<double>(hidden)));
    ops::RouterParameters router;
    router.matrix = name("router.proj");
    router.shape = {config_.num_experts, config_.num_experts_per_token};
    router.normalizes = true;
    router.expert_scale = name("router.per_expert_scale");
    graph_.add("router", layer_, {router_input}, {}, std::move(router));
    add_norm("pre_feedforward_layernorm_2.weight", normed_, /*enters_layer=*/false);
    ops::ExpertsParameters experts;
    experts.prefix = name("experts.");
    experts.gate = "gate_proj";
    experts.up = "up_proj";
    experts.down = "down_proj";
    experts.experts = config_.num_experts;
    experts.top_k = config_.num_experts_per_token;
    experts.intermediate = config_.moe_intermediate_size;
    experts.gating = kGelu;
    const ValueId slots = value("expert_slots", config_.num_experts_per_token * hidden);
    graph_.add("experts", layer_, {normed_}, {slots}, std::move(experts));
    ops::CombineParameters combine;
    combine.adds_to_residual = false;
    const ValueId sum = value("expert_sum", hidden);
    graph_.add("combine", layer_, {slots, normed_}, {sum}, std::move(combine));
    return sum;
  }

  /// Adds what stands before the layers.
  void add_layer_inputs() {
    const int64_t width = config_.num_layers * own_.per_layer_input_size;
    const ValueId projected = graph_.add_value("projected_embedding", width);
    layer_inputs_ = graph_.add_value("layer_inputs", width);
    add_projection("model.per_layer_model_projection", residual_, projected);
    ops::LayerInputsParameters inputs;
    inputs.table = "model.embed_tokens_per_layer";
    inputs.table_rows = own_.per_layer_vocab_size;
    inputs.width = own_.per_layer_input_size;
    inputs.table_scale = std::sqrt(static_cast<double>(own_.per_layer_input_size));
    inputs.scale = 1.0 / std::sqrt(static_cast<double>(config_.hidden_size));
    inputs.sum_scale = 1.0 / std::sqrt(2.0);
    inputs.norm = "model.per_layer_projection_norm.weight";
    inputs.eps = config_.rms_norm_eps;
    graph_.add("layer_inputs", -1, {projected}, {layer_inputs_}, std::move(inputs));
    graph_.layers_read_tokens = true;
  }

  void add_layer_input() {
    const ValueId gate = value("layer_gate", own_.per_layer_input_size);
    const ValueId gated = value("gated_layer_input", own_.per_layer_input_size);
    add_projection(name("per_layer_input_gate"), residual_, gate);
    ops::LayerGateParameters own;
    own.first = layer_ * own_.per_layer_input_size;
    graph_.add("layer_gate", layer_, {gate, layer_inputs_}, {gated}, std::move(own));
    add_projection(name("per_layer_projection"), gated, branch_);
    add_post_norm("post_per_layer_input_norm.weight", Part::kLayerInput, /*is_last=*/true);
  }

  const ModelConfig& config_;
  const Gemma4Fields& own_;
  ops::Graph graph_;
  int layer_ = -1;
  ValueId residual_ = -1, normed_ = -1, branch_ = -1, layer_inputs_ = -1;
};

ops::Graph build_gemma4(const ModelConfig& config) { return Gemma4Builder(config).build(); }

constexpr const char* kGemma4Defaults =
    R"({"vocab_size": 262144, "hidden_size": 2304, "num_hidden_layers": 30, "num_attention_heads":
        8, "intermediate_size": 9216, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-06, "tie_word_embeddings": true,
        "attention_bias": false, "sliding_window": 512, "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256, "attention_k_eq_v": false, "num_kv_shared_layers": 0,
        "enable_moe_block": false, "use_double_wide_mlp": false})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{.family = {.model_types = {"gemma4_text"},
                                                       .defaults = kGemma4Defaults,
                                                       .read_config = read_gemma4,
                                                       .wrappers = {{"gemma4", true}},
                                                       .gguf_forms = gemma4_gguf_forms()},
                                            .build = build_gemma4}));

}  // namespace
}  // namespace vitrine::model
