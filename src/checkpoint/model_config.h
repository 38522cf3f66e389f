// SPDX-License-Identifier: Apache-2.0
// A model's config.json in one spelling, as the graph of its family is built from it. Hosts see
// ModelFacts and ModelSummary alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/checkpoint.h"

namespace vitrine {

/// How rotary frequencies differ from theta^(-2i/head_dim), as transformers computes each kind.
struct RopeScaling {
  /// What is done to the frequencies.
  enum class Kind : uint8_t {
    kNone,
    kLinear,    ///< all divided by `factor`
    kYarn,      ///< divided by `factor`, but for fast ones; a ramp between
    kLlama3,    ///< divided by `factor`, but for short waves; a ramp between
    kDivisors,  ///< each divided by its own of `divisors`
  };
  Kind kind = Kind::kNone;                       ///< what is done
  double factor = 1.0;                           ///< how many times longer the context becomes
  int64_t original_max_position_embeddings = 0;  ///< kYarn, kLlama3
  double beta_fast = 32.0;        ///< kYarn: turns over the original context, where the ramp begins
  double beta_slow = 1.0;         ///< kYarn: turns over it, where the ramp ends
  bool truncate = true;           ///< kYarn: the ramp's ends are whole numbers
  double low_freq_factor = 1.0;   ///< kLlama3: the ramp's end among long waves
  double high_freq_factor = 4;    ///< kLlama3: the ramp's end among short waves
  std::vector<double> divisors;   ///< kDivisors: head_dim / 2
  double attention_factor = 1.0;  ///< cosine and sine are multiplied with it
  double mscale_all_dim = 0.0;    ///< kYarn: scales latent attention; 0: that stays as it is

  /// Returns what the scale of latent attention is multiplied with.
  VITRINE_API double latent_scale() const;
};

/// How a checkpoint holds the weights of a model with Gated DeltaNet.
enum class LinearLayout : uint8_t {
  kPublished,  ///< as transformers writes them
  /// GGUF files have it: norms hold 1 + w (but the gated one), decays hold -exp(A_log)
  /// (`linear_attn.A`). In qwen3_next the matrices of queries, keys and values stand apart from
  /// those of gates. In qwen3_5 value head h reads key head h % linear_key_heads; in all other
  /// families and layouts it reads h / (value heads of a key).
  kConverted,
  kConvertedWhole,  ///< older files of qwen3_next: the same, but both in one matrix
};

/// The fields that one family alone has, in a struct of the family's own: its reader of config.json
/// makes it (checkpoint::Family::read_config), and its graph is built from it.
struct FamilyFields {
  virtual ~FamilyFields() = default;
};

/// A model's config.json in one spelling. Every number is range-checked.
struct ModelConfig : ModelFacts {
  std::vector<std::string> architectures;  ///< `architectures`, may be empty
  int64_t num_heads = 0;                   ///< query heads
  int64_t num_kv_heads = 0;                ///< divides num_heads
  int64_t head_dim = 0;                    ///< even; hidden_size / num_heads where absent
  double rms_norm_eps = 1e-6;              ///< epsilon of every norm
  double rope_theta = 10000.0;             ///< base of the rotary frequencies
  RopeScaling rope_scaling;                ///< how these differ for long contexts
  bool tie_word_embeddings = false;        ///< the output head is the embedding
  DType dtype = DType::kF32;               ///< `dtype` / `torch_dtype`

  bool attention_bias = false;         ///< `attention_bias`: q, k, v and o have biases
  std::optional<bool> qkv_bias;        ///< `qkv_bias` where given: q, k and v only
  std::optional<bool> query_key_norm;  ///< `use_qk_norm` where given
  bool rope_interleave = true;         ///< latent attention rotates neighbours; else halves
  std::optional<double> clip_qkv;      ///< where given: q, k and v are clamped to ±clip_qkv
  /// By layer: how many positions a token sees, its own the last; 0: all. Empty: all in all layers.
  std::vector<int64_t> windows;
  int64_t rotary_dim = 0;  ///< first elements of a head that are rotated; 0: all
  /// By layer: whether its heads are rotated. Empty: all are.
  std::vector<bool> rotates;

  /// Latent attention (MLA): elements of a position's latent, from which the keys and values of all
  /// heads are made; 0: there is none. Then num_kv_heads is 1, head_dim is what a query head has
  /// before its rotated part and with it, and rotary_dim is that part.
  int64_t kv_lora_rank = 0;
  int64_t q_lora_rank = 0;       ///< elements of the latent that queries are made from; 0: none
  int64_t qk_nope_head_dim = 0;  ///< elements of a query head that are not rotated
  int64_t v_head_dim = 0;        ///< elements of a head's value

  /// By layer, whether it keeps a state of a sequence in place of keys and values: Gated DeltaNet,
  /// or a short convolution. Empty: none does.
  std::vector<bool> linear_layers;
  int64_t convolution_taps = 0;    ///< inputs that a convolution sees; 0: layers are Gated DeltaNet
  int64_t linear_key_heads = 0;    ///< key heads of such a layer; divides linear_value_heads
  int64_t linear_value_heads = 0;  ///< each with a state of its own
  int64_t linear_key_dim = 0;      ///< elements of a query and of a key
  int64_t linear_value_dim = 0;    ///< elements of a value
  int64_t linear_taps = 0;         ///< positions that its convolution sees, the last its own
  bool convolution_bias = false;   ///< short convolutions and their matrices have biases
  LinearLayout linear_layout = LinearLayout::kPublished;  ///< how the file holds such layers

  /// By layer, whether it slides, in a model whose other layers have heads, key-value heads and
  /// rotary frequencies of their own. Empty: all layers are of one kind.
  std::vector<bool> slides;
  int64_t global_head_dim = 0;       ///< head_dim of layers that do not slide; 0: head_dim
  int64_t global_kv_heads = 0;       ///< their key-value heads; 0: num_kv_heads
  double sliding_rope_theta = 0;     ///< rope_theta of layers that slide
  double global_rotary_share = 1.0;  ///< share of the others' frequencies that is not 0
  int64_t num_kv_shared_layers = 0;  ///< last layers, which read the keys and values of others

  int64_t intermediate_size = 0;                ///< width of a dense feed-forward block
  int64_t num_experts = 0;                      ///< 0: a dense model
  int64_t num_experts_per_token = 0;            ///< top-k
  int64_t moe_intermediate_size = 0;            ///< an expert's; `intermediate_size` where absent
  int64_t shared_expert_intermediate_size = 0;  ///< 0: no shared expert
  std::optional<bool> norm_topk_prob;    ///< where given: divide the top-k weights by their sum
  int64_t decoder_sparse_step = 1;       ///< layer l is sparse only if (l + 1) % step == 0
  std::vector<int64_t> mlp_only_layers;  ///< layers that are dense all the same, ascending

  int64_t router_groups = 1;           ///< `n_group`: groups of experts
  int64_t router_chosen_groups = 1;    ///< `topk_group`: groups whose experts are chosen from
  double routed_scaling_factor = 1.0;  ///< factor of the chosen experts' weights
  int64_t num_draft_layers = 0;        ///< layers behind the others that only draft
  double embedding_multiplier = 1.0;   ///< the embedding is multiplied with it
  std::optional<double> attention_multiplier;  ///< the scale of attention, where given
  double residual_multiplier = 1.0;            ///< what blocks give is multiplied with it
  double logits_scaling = 1.0;                 ///< logits are divided by it

  std::optional<int64_t> bos_token_id;  ///< begins a text, where the model has one

  std::shared_ptr<const FamilyFields> own;  ///< fields of its family alone; null: it has none
  /// Returns these as the family's struct.
  template <typename Fields>
  const Fields& own_fields() const {
    return static_cast<const Fields&>(*own);
  }

  /// Returns true where layer `layer` (from 0) is one that does not slide, of a model in which
  /// these have heads of their own.
  bool is_global_layer(int64_t layer) const {
    return !slides.empty() && !slides[static_cast<size_t>(layer)];
  }
  /// Returns the elements of a head of layer `layer`.
  int64_t layer_head_dim(int64_t layer) const {
    return is_global_layer(layer) && global_head_dim > 0 ? global_head_dim : stored_key_width();
  }
  /// Returns the key-value heads of layer `layer`.
  int64_t layer_kv_heads(int64_t layer) const {
    return is_global_layer(layer) && global_kv_heads > 0 ? global_kv_heads : num_kv_heads;
  }
  /// Returns the layer whose keys and values layer `layer` reads: itself, or the last one of its
  /// kind that has its own.
  int64_t kv_source(int64_t layer) const {
    int64_t source = layer;
    for (const int64_t end = num_layers - num_kv_shared_layers; source >= 0; --source) {
      if (source == layer && layer < end) break;
      if (source < end && is_global_layer(source) == is_global_layer(layer)) break;
    }
    return source;
  }
  /// Returns true for latent attention.
  bool is_latent() const { return kv_lora_rank > 0; }
  /// Returns the elements of a stored key of one kv head.
  int64_t stored_key_width() const { return is_latent() ? kv_lora_rank + rotary_dim : head_dim; }
  /// Returns the elements of a value that is stored beside its key: 0 where it is the key's
  /// beginning.
  int64_t stored_value_width() const { return is_latent() ? 0 : head_dim; }
  /// Returns true where layer `layer` (from 0) keeps a state in place of keys and values.
  bool is_linear_layer(int64_t layer) const {
    return !linear_layers.empty() && linear_layers[static_cast<size_t>(layer)];
  }
  /// Returns true where these layers are short convolutions.
  bool has_convolutions() const { return convolution_taps > 0; }
  /// Returns the elements that the convolution of a layer of Gated DeltaNet goes over: queries,
  /// keys and values of all heads.
  int64_t linear_channels() const {
    return 2 * linear_key_heads * linear_key_dim + linear_value_heads * linear_value_dim;
  }
  /// Returns the elements of a head that are rotated.
  int64_t rotary_width() const { return rotary_dim > 0 ? rotary_dim : head_dim; }
  /// Returns true where layer `layer` (from 0) has experts in place of a dense feed-forward block.
  bool is_sparse_layer(int64_t layer) const {
    if (num_experts <= 0 || (layer + 1) % decoder_sparse_step != 0) return false;
    for (int64_t dense : mlp_only_layers) {
      if (dense == layer) return false;
    }
    return true;
  }
};

/// Normalises config.json and generation_config.json, in older and transformers-5 spelling, as the
/// family of its model_type is registered to (checkpoint::Family). Throws kBadFile for a field that
/// is missing, of the wrong type or out of range, kUnsupported for a valid one that Vitrine can't
/// run (another activation, an unknown RoPE scaling).
VITRINE_API ModelConfig parse_model_config(const Checkpoint& checkpoint);
/// Normalises the same from text; the names stand for the files in messages.
/// `generation_config_json` may be empty.
VITRINE_API ModelConfig parse_model_config(std::string_view config_json,
                                           const std::string& config_name,
                                           std::string_view generation_config_json = {},
                                           const std::string& generation_config_name = {});

}  // namespace vitrine
