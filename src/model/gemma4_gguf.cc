// SPDX-License-Identifier: Apache-2.0
// Gemma 4 in GGUF files: what they hold, and its fields of config.json.
#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "checkpoint/config_limits.h"
#include "checkpoint/text.h"
#include "model/gemma4.h"

namespace vitrine::model {
namespace {

using checkpoint::GgufArray;
using checkpoint::GgufMetadata;
using checkpoint::GgufType;
using checkpoint::GgufValue;
using checkpoint::kMaxExperts;
using checkpoint::kMaxHeads;
using checkpoint::kMaxVocabulary;
using checkpoint::kMaxWidth;
using checkpoint::OrderedJson;

/// Tensors that the inputs of single layers are made with (E2B, E4B).
constexpr std::array kGemmaModelNames = {
    checkpoint::GgufName{"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
    checkpoint::GgufName{"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
    checkpoint::GgufName{"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"},
};

/// Tensors of a layer; the last ones are those of experts.
constexpr std::array kGemmaLayerNames = {
    checkpoint::GgufName{"post_attention_norm.weight", "post_attention_layernorm.weight"},
    checkpoint::GgufName{"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
    checkpoint::GgufName{"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
    checkpoint::GgufName{"layer_output_scale.weight", "layer_scalar"},
    checkpoint::GgufName{"inp_gate.weight", "per_layer_input_gate.weight"},
    checkpoint::GgufName{"proj.weight", "per_layer_projection.weight"},
    checkpoint::GgufName{"post_norm.weight", "post_per_layer_input_norm.weight"},
    checkpoint::GgufName{"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"},
    checkpoint::GgufName{"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"},
    checkpoint::GgufName{"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"},
    checkpoint::GgufName{"ffn_gate_inp.scale", "router.scale"},
    checkpoint::GgufName{"ffn_down_exps.scale", "router.per_expert_scale"},
};
constexpr size_t kGemmaExpertNames = 5;

constexpr std::array<std::string_view, 2> kGemmaKeys = {"attention.shared_kv_layers",
                                                        "final_logit_softcapping"};

/// The least divisor that says that a pair of elements is not turned (files write 1e30).
constexpr float kUnturned = 1e20F;

class GemmaWriter {
 public:
  GemmaWriter(const checkpoint::GgufSource& source, OrderedJson& config)
      : source_(source), metadata_(source.metadata), config_(config) {
    layers_ = config["num_hidden_layers"].get<int64_t>();
  }

  void write(const std::vector<float>& rope_factors) {
    config_.erase("hidden_act");
    config_["hidden_activation"] = "gelu_pytorch_tanh";
    write_layer_types();
    write_heads();
    write_rotary(rope_factors);
    write_feed_forward();
    write_layer_inputs();
    const auto cap = metadata_.number(key("final_logit_softcapping"), 0.0, 1e9);
    if (cap && *cap > 0.0) config_["final_logit_softcapping"] = *cap;
  }

 private:
  std::string key(std::string_view name) const { return source_.key(name); }

  bool has_tensor(const std::string& name) const { return source_.tensor(name) != nullptr; }

  /// Returns a key's array of a number or flag for each layer; null where the key holds one value.
  const GgufArray* layer_array(const std::string& name, bool of_flags) const {
    const GgufValue* value = metadata_.find(name);
    if (value == nullptr || value->type != GgufType::kArray) return nullptr;
    const auto& array = std::get<GgufArray>(value->value);
    const bool is_integral = array.element_type <= GgufType::kI32 ||
                             array.element_type == GgufType::kU64 ||
                             array.element_type == GgufType::kI64;
    const bool fits = is_integral || (of_flags && array.element_type == GgufType::kBool);
    if (!fits || array.count != static_cast<uint64_t>(layers_)) {
      metadata_.bad(name, std::string(of_flags ? "a flag" : "an integer") + " for each of the " +
                              std::to_string(layers_) + " layers");
    }
    return &array;
  }

  /// Returns a number for each layer: the file has as many, or one for all. Empty where the key is
  /// absent.
  std::vector<int64_t> layer_integers(const std::string& name, int64_t low, int64_t high) const {
    const auto count = static_cast<size_t>(layers_);
    const GgufArray* array = layer_array(name, /*of_flags=*/false);
    if (array == nullptr) {
      const auto one = metadata_.integer(name, low, high);
      return one ? std::vector<int64_t>(count, *one) : std::vector<int64_t>();
    }
    std::vector<int64_t> numbers;
    for (uint64_t i = 0; i < count; ++i) {
      numbers.push_back(array->integer(i));
      if (numbers.back() < low || numbers.back() > high) {
        metadata_.bad(name, "integers of " + checkpoint::range_text(low, high));
      }
    }
    return numbers;
  }

  void write_layer_types() {
    const std::string name = key("attention.sliding_window_pattern");
    const GgufArray* pattern = layer_array(name, /*of_flags=*/true);
    if (pattern == nullptr) metadata_.bad(name, "an array of a flag for each layer");
    auto types = OrderedJson::array();
    for (uint64_t layer = 0; layer < pattern->count; ++layer) {
      const bool slides = pattern->element_type == GgufType::kBool ? pattern->bytes[layer] != 0
                                                                   : pattern->integer(layer) != 0;
      slides_.push_back(slides);
      types.push_back(slides ? "sliding_attention" : "full_attention");
    }
    if (slides_.back()) {
      metadata_.unsupported(name, "a last layer that does not slide, as the family has it");
    }
    config_["layer_types"] = std::move(types);
    if (std::ranges::find(slides_, true) == slides_.end()) return;
    config_["sliding_window"] =
        metadata_.required_integer(key("attention.sliding_window"), 1, INT64_MAX);
  }

  /// Returns the number that layers of a kind have, of those that slide or of the others; `all`
  /// where there are no such layers.
  int64_t number_of_kind(const std::string& name, const std::vector<int64_t>& numbers, bool slides,
                         int64_t all) const {
    int64_t found = 0;
    for (size_t layer = 0; layer < numbers.size(); ++layer) {
      if (slides_[layer] != slides) continue;
      if (found != 0 && numbers[layer] != found) {
        metadata_.unsupported(name, "the same number in all layers that slide, and in all others");
      }
      found = numbers[layer];
    }
    return found == 0 ? all : found;
  }

  int64_t head_width(const char* key_name, const char* value_name) const {
    const int64_t width = metadata_.required_integer(key(key_name), 2, kMaxWidth);
    if (metadata_.integer(key(value_name), 1, kMaxWidth).value_or(width) != width) {
      metadata_.unsupported(key(value_name), std::to_string(width) + ", the length of a key");
    }
    return width;
  }

  void write_heads() {
    const std::string head_key = key("attention.head_count");
    const std::string kv_key = key("attention.head_count_kv");
    const auto heads = metadata_.uniform_integer(head_key, 1, kMaxHeads);
    if (!heads) metadata_.bad(head_key, "the number of query heads");
    const std::vector<int64_t> kv_heads = layer_integers(kv_key, 1, kMaxHeads);
    const int64_t global_kv = number_of_kind(kv_key, kv_heads, false, *heads);
    const int64_t sliding_kv = number_of_kind(kv_key, kv_heads, true, global_kv);
    if (*heads % global_kv != 0 || *heads % sliding_kv != 0) {
      metadata_.bad(kv_key, "divisors of the " + std::to_string(*heads) + " query heads");
    }
    global_dim_ = head_width("attention.key_length", "attention.value_length");
    sliding_dim_ = head_width("attention.key_length_swa", "attention.value_length_swa");
    shared_layers_ =
        metadata_.integer(key("attention.shared_kv_layers"), 0, layers_ - 1).value_or(0);
    const bool takes_keys = takes_values_from_keys();
    config_["num_attention_heads"] = *heads;
    config_["num_key_value_heads"] = sliding_kv;
    config_["head_dim"] = sliding_dim_;
    config_["global_head_dim"] = global_dim_;
    config_["attention_bias"] = false;
    config_["attention_k_eq_v"] = takes_keys;
    config_["num_kv_shared_layers"] = shared_layers_;
    if (takes_keys) {
      config_["num_global_key_value_heads"] = global_kv;
    } else if (global_kv != sliding_kv) {
      for (int64_t layer = 0; layer < layers_; ++layer) {
        if (slides_[static_cast<size_t>(layer)]) continue;
        config_["per_layer_config"][std::to_string(layer)] = {{"head_dim", global_dim_},
                                                              {"num_key_value_heads", global_kv}};
      }
    }
  }

  /// Returns whether layers that do not slide take their values from keys. No key says it, but they
  /// have no matrix that makes values.
  bool takes_values_from_keys() const {
    int64_t with = -1, without = -1;
    for (int64_t layer = 0; layer < layers_ - shared_layers_; ++layer) {
      if (slides_[static_cast<size_t>(layer)]) continue;
      const std::string prefix = "model.layers." + std::to_string(layer) + ".self_attn.";
      (has_tensor(prefix + "v_proj.weight") ? with : without) = layer;
    }
    if (with >= 0 && without >= 0) {
      checkpoint::throw_unsupported(
          metadata_.file() + ": holds 'blk." + std::to_string(with) +
          ".attn_v.weight', but no 'blk." + std::to_string(without) +
          ".attn_v.weight'; expected it in all layers that do not slide, or in none");
    }
    return without >= 0;
  }

  double theta(const char* name) const {
    return metadata_.number(key(name), 1.0, 1e15).value_or(1e4);
  }

  void write_rotary(const std::vector<float>& factors) {
    for (const auto& [name, width] : {std::pair{"rope.dimension_count", global_dim_},
                                      {"rope.dimension_count_swa", sliding_dim_}}) {
      if (metadata_.integer(key(name), 1, kMaxWidth).value_or(width) == width) continue;
      metadata_.unsupported(key(name), std::to_string(width) + " (whole heads)");
    }
    const std::string type_key = key("rope.scaling.type");
    const std::string type = metadata_.string(type_key).value_or("none");
    if (type != "none" && type != "linear") metadata_.unsupported(type_key, "'none'");
    for (const char* name : {"rope.scaling.factor", "rope.scale_linear"}) {
      const double factor = metadata_.number(key(name), 0.0, 1e6).value_or(0.0);
      if (factor != 0.0 && factor != 1.0) metadata_.unsupported(key(name), "1");
    }
    config_["rope_parameters"] = {
        {"full_attention",
         {{"rope_type", "proportional"},
          {"partial_rotary_factor", turned_share(factors)},
          {"rope_theta", theta("rope.freq_base")}}},
        {"sliding_attention",
         {{"rope_type", "default"}, {"rope_theta", theta("rope.freq_base_swa")}}}};
  }

  /// Returns the share of pairs that are turned in a layer that does not slide: those at the
  /// beginning of a head.
  double turned_share(const std::vector<float>& factors) const {
    const std::string place = metadata_.file() + ": the tensor 'rope_freqs.weight'";
    const auto half = static_cast<size_t>(global_dim_ / 2);
    if (factors.size() != half) {
      checkpoint::throw_bad_file(
          place +
          (factors.empty() ? " is missing" : " has " + std::to_string(factors.size()) + " values") +
          "; expected " + std::to_string(half) +
          " values, half a head of a layer that does not slide");
    }
    size_t turned = 0;
    while (turned < half && factors[turned] == 1.0F) ++turned;
    for (size_t i = turned; i < half; ++i) {
      if (factors[i] >= kUnturned) continue;
      checkpoint::throw_unsupported(place + " holds " + std::to_string(factors[i]) +
                                    "; expected ones, then 1e30 for pairs that are not turned");
    }
    // Whoever multiplies it with the pairs and cuts off the fraction shall find as many.
    const auto pairs = static_cast<double>(half);
    double share = static_cast<double>(turned) / pairs;
    while (std::floor(share * pairs) < static_cast<double>(turned)) {
      share = std::nextafter(share, 2.0);
    }
    return share;
  }

  void write_feed_forward() {
    const std::string name = key("feed_forward_length");
    const std::vector<int64_t> sizes = layer_integers(name, 1, kMaxWidth / 2);
    if (sizes.empty()) metadata_.bad(name, "a size");
    const auto own = static_cast<size_t>(layers_ - shared_layers_);
    const bool is_wide = sizes.back() == 2 * sizes.front();
    for (size_t layer = 0; layer < sizes.size(); ++layer) {
      if (sizes[layer] == sizes.front() * (is_wide && layer >= own ? 2 : 1)) continue;
      metadata_.unsupported(name,
                            "the same number in every layer, or twice that in all layers without "
                            "keys and values");
    }
    config_["intermediate_size"] = sizes.front();
    config_["use_double_wide_mlp"] = is_wide;
    const auto experts = metadata_.integer(key("expert_count"), 0, kMaxExperts).value_or(0);
    config_["enable_moe_block"] = experts > 0;
    if (experts == 0) return;
    config_["num_experts"] = experts;
    config_["top_k_experts"] = metadata_.required_integer(key("expert_used_count"), 1, experts);
    config_["moe_intermediate_size"] =
        metadata_.required_integer(key("expert_feed_forward_length"), 1, kMaxWidth);
    const std::string gating = key("expert_gating_func");
    const int64_t function = metadata_.integer(gating, 0, 100).value_or(0);
    if (function > 1) metadata_.unsupported(gating, "1, softmax");
    if (!metadata_.boolean(key("expert_weights_norm")).value_or(true)) {
      metadata_.unsupported(key("expert_weights_norm"), "true");
    }
  }

  void write_layer_inputs() {
    const std::string name = key("embedding_length_per_layer_input");
    const int64_t width = metadata_.integer(name, 0, kMaxWidth).value_or(0);
    const TensorInfo* table = source_.tensor("model.embed_tokens_per_layer.weight");
    config_["hidden_size_per_layer_input"] = width;
    if ((width == 0) != (table == nullptr)) {
      metadata_.bad(name, width == 0 ? "a width for the tensor 'per_layer_token_embd.weight'"
                                     : "0 without the tensor 'per_layer_token_embd.weight'");
    }
    if (width == 0) return;
    if (table->shape.size() != 2 || table->shape[0] > kMaxVocabulary) {
      checkpoint::throw_bad_file(
          metadata_.file() + ": the tensor 'per_layer_token_embd.weight' is " +
          checkpoint::shape_text(table->shape) + "; expected [vocabulary, layers x " +
          std::to_string(width) + "], at most " + std::to_string(kMaxVocabulary) + " rows");
    }
    config_["vocab_size_per_layer_input"] = table->shape[0];
  }

  const checkpoint::GgufSource& source_;
  const GgufMetadata& metadata_;
  OrderedJson& config_;
  std::vector<bool> slides_;
  int64_t layers_ = 0, shared_layers_ = 0, global_dim_ = 0, sliding_dim_ = 0;
};

/// Writes heads, kinds of layers, rotary parameters, blocks and what else the family has.
void write_gemma4(const checkpoint::GgufSource& source, OrderedJson& config) {
  checkpoint::write_biases(source, config);
  checkpoint::refuse_yarn_values(source);
  GemmaWriter(source, config).write(source.rope_factors);
}

}  // namespace

std::vector<checkpoint::GgufArchitecture> gemma4_gguf_forms() {
  const std::span layer_names(kGemmaLayerNames);
  checkpoint::GgufArchitecture dense = {
      .name = "gemma4",
      .class_name = "Gemma4ForCausalLM",
      .has_head_norms = true,
      .has_gate_up_experts = true,
      .model_names = kGemmaModelNames,
      .layer_names = layer_names.first(kGemmaLayerNames.size() - kGemmaExpertNames),
      .own_keys = kGemmaKeys,
      .write_config = write_gemma4};
  checkpoint::GgufArchitecture experts = dense;
  experts.has_experts = true;
  experts.block = "";
  experts.router = "router.proj";
  experts.layer_names = layer_names;
  return {dense, experts};
}

}  // namespace vitrine::model
