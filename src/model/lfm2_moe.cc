// SPDX-License-Identifier: Apache-2.0
// LFM2 with experts (Liquid AI 2025): most layers are short convolutions, which keep their last
// inputs in place of keys and values; the others attend. Scores by sigmoid, corrected for the
// choice.
#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <string>

#include "checkpoint/config_limits.h"
#include "checkpoint/layer_types.h"
#include "checkpoint/rope_config.h"
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

struct Lfm2MoeFields final : FamilyFields {
  bool corrects_scores = true;  ///< `use_expert_bias`
};

ops::Graph build_lfm2_moe(const ModelConfig& config) {
  DecoderTraits traits;
  traits.query_key_norm = true;
  traits.input_norm = "operator_norm";
  traits.block_norm = "ffn_norm";
  traits.final_norm = "model.embedding_norm";
  traits.query_norm = "self_attn.q_layernorm";
  traits.key_norm = "self_attn.k_layernorm";
  traits.output = "self_attn.out_proj";
  traits.dense_block = traits.block = "feed_forward";
  traits.router = "feed_forward.gate";
  traits.gate = "w1";
  traits.up = "w3";
  traits.down = "w2";
  traits.score = ops::RouterParameters::Score::kSigmoid;
  if (config.own_fields<Lfm2MoeFields>().corrects_scores) {
    traits.correction = "feed_forward.expert_bias";
  }
  traits.normalize_top_k = config.norm_topk_prob.value_or(true);
  traits.sum_epsilon = 1e-6;
  return build_decoder(config, traits);
}

/// Reads which layers are convolutions, and what these are.
void read_convolutions(const checkpoint::Fields& fields, ModelConfig& config) {
  for (const std::string& type :
       checkpoint::read_layer_types(fields, "layer_types", config.num_layers, "conv",
                                    "full_attention", /*is_required=*/true)) {
    config.linear_layers.push_back(type == "conv");
  }
  if (std::ranges::all_of(config.linear_layers, std::identity())) {
    fields.unsupported("layer_types", "a layer of 'full_attention' or more");
  }
  constexpr int64_t kMaxTaps = 16;
  const int64_t taps = fields.integer("conv_L_cache", 2, kMaxTaps).value_or(3);
  config.convolution_bias = fields.boolean("conv_bias").value_or(false);
  const auto own = std::make_shared<Lfm2MoeFields>();
  own->corrects_scores = fields.boolean("use_expert_bias").value_or(true);
  config.own = own;
  if (std::ranges::none_of(config.linear_layers, std::identity())) {
    config.linear_layers.clear();
  } else {
    config.convolution_taps = taps;
  }
}

void read_lfm2_moe(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_heads(fields, config);
  checkpoint::read_rope(fields, config);
  read_convolutions(fields, config);
  checkpoint::read_feed_forward(fields, config);
}

constexpr std::array kLfm2MoeNames = {
    checkpoint::GgufName{"attn_norm.weight", "operator_norm.weight"},
    checkpoint::GgufName{"attn_q.weight", "self_attn.q_proj.weight"},
    checkpoint::GgufName{"attn_k.weight", "self_attn.k_proj.weight"},
    checkpoint::GgufName{"attn_v.weight", "self_attn.v_proj.weight"},
    checkpoint::GgufName{"attn_output.weight", "self_attn.out_proj.weight"},
    checkpoint::GgufName{"attn_q_norm.weight", "self_attn.q_layernorm.weight"},
    checkpoint::GgufName{"attn_k_norm.weight", "self_attn.k_layernorm.weight"},
    checkpoint::GgufName{"shortconv.conv.weight", "conv.conv.weight", /*is_convolution=*/true},
    checkpoint::GgufName{"shortconv.in_proj.weight", "conv.in_proj.weight"},
    checkpoint::GgufName{"shortconv.out_proj.weight", "conv.out_proj.weight"},
    checkpoint::GgufName{"ffn_norm.weight", "ffn_norm.weight"},
    checkpoint::GgufName{"ffn_gate.weight", "feed_forward.w1.weight"},
    checkpoint::GgufName{"ffn_up.weight", "feed_forward.w3.weight"},
    checkpoint::GgufName{"ffn_down.weight", "feed_forward.w2.weight"},
};

/// Writes which layers are convolutions: those without key-value heads.
int64_t write_lfm2_moe_heads(const checkpoint::GgufSource& source, int64_t layers,
                             checkpoint::OrderedJson& config) {
  const checkpoint::GgufMetadata& metadata = source.metadata;
  const std::string heads_key = source.key("attention.head_count_kv");
  const std::vector<int64_t> heads = metadata.integers(heads_key, 0, checkpoint::kMaxHeads);
  if (static_cast<int64_t>(heads.size()) != layers) {
    metadata.bad(heads_key, "a number for each of " + std::to_string(layers) + " layers");
  }
  int64_t kv_heads = 0;
  auto types = checkpoint::OrderedJson::array();
  for (const int64_t count : heads) {
    if (count != 0 && kv_heads != 0 && count != kv_heads) {
      metadata.unsupported(heads_key, "0 or the same number in every layer");
    }
    if (count != 0) kv_heads = count;
    types.push_back(count == 0 ? "conv" : "full_attention");
  }
  if (kv_heads == 0) metadata.unsupported(heads_key, "heads in a layer or more");
  config["layer_types"] = std::move(types);
  config["conv_L_cache"] =
      metadata.required_integer(source.key("shortconv.l_cache"), 2, checkpoint::kMaxLinearTaps);
  config["conv_bias"] = false;
  config["norm_eps"] = config["rms_norm_eps"];
  config["num_dense_layers"] = 0;  // the tensors say which layers are dense
  return kv_heads;
}

constexpr const char* kLfm2MoeDefaults =
    R"({"vocab_size": 65536, "hidden_size": 2048, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 7168, "moe_intermediate_size": 1792, "tie_word_embeddings": true,
        "max_position_embeddings": 128000, "norm_eps": 1e-05, "num_key_value_heads": 8, "conv_bias":
        false, "conv_L_cache": 3, "num_dense_layers": 2, "num_experts_per_tok": 4, "num_experts":
        32, "use_expert_bias": true, "routed_scaling_factor": 1.0, "norm_topk_prob": true,
        "rope_theta": 1000000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"lfm2_moe"},
               .defaults = kLfm2MoeDefaults,
               .epsilon = "norm_eps",
               .read_config = read_lfm2_moe,
               .gguf_forms = {{.name = "lfm2moe",
                               .has_experts = true,
                               .class_name = "Lfm2MoeForCausalLM",
                               .normalizes_top_k = true,
                               .has_head_norms = true,
                               .has_sigmoid = true,
                               .has_own_names_only = true,
                               .correction = "feed_forward.expert_bias",
                               .block = "feed_forward",
                               .router = "feed_forward.gate",
                               .dense_gate = "feed_forward.w1",
                               .gate = "w1",
                               .up = "w3",
                               .down = "w2",
                               .final_norm = {"token_embd_norm.weight",
                                              "model.embedding_norm.weight"},
                               .layer_names = kLfm2MoeNames,
                               .write_kv_heads = write_lfm2_moe_heads}}},
    .build = build_lfm2_moe}));

}  // namespace
}  // namespace vitrine::model
