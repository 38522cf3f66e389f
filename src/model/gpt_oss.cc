// SPDX-License-Identifier: Apache-2.0
// gpt-oss (OpenAI 2025): attention with sinks, every other layer within a window, biases on all
// matrices but the embedding's and the head's, a clamped gating.
#include <array>
#include <memory>

#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

/// The constants of its gating.
struct GptOssFields final : FamilyFields {
  double swiglu_limit = 0;  ///< the clamp of gate and up
  double swiglu_alpha = 0;  ///< the sigmoid's factor
};

ops::Graph build_gpt_oss(const ModelConfig& config) {
  const auto& own = config.own_fields<GptOssFields>();
  DecoderTraits traits;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  traits.sinks = true;
  traits.softmax_after_top_k = true;
  traits.router = "mlp.router";
  traits.router_bias = traits.expert_biases = true;
  traits.gating = {kernels::Gating::Kind::kClamped, static_cast<float>(own.swiglu_alpha),
                   static_cast<float>(own.swiglu_limit)};
  return build_decoder(config, traits);
}

bool gpt_oss_slides(const checkpoint::Fields& /*fields*/, const ModelConfig& /*config*/,
                    int64_t layer) {
  return layer % 2 == 0;
}

void read_gpt_oss(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_decoder(fields, config, gpt_oss_slides);
  const auto own = std::make_shared<GptOssFields>();
  own->swiglu_limit = fields.number("swiglu_limit", 1e-6, 1e9).value_or(7.0);
  own->swiglu_alpha = fields.number("swiglu_alpha", 1e-6, 1e9).value_or(1.702);
  config.own = own;
}

constexpr std::array kGptOssNames = {
    checkpoint::GgufName{"attn_sinks.weight", "self_attn.sinks"},
};

void write_gpt_oss(const checkpoint::GgufSource& source, checkpoint::OrderedJson& config) {
  checkpoint::write_decoder_fields(source, config);
  // No file has a key for it; this family was made without.
  if (config.contains("rope_scaling") && config["rope_scaling"]["rope_type"] == "yarn") {
    config["rope_scaling"]["truncate"] = false;
  }
}

constexpr const char* kGptOssDefaults =
    R"({"vocab_size": 201088, "hidden_size": 2880, "num_hidden_layers": 36, "num_attention_heads":
        64, "num_local_experts": 128, "intermediate_size": 2880, "head_dim": 64,
        "num_key_value_heads": 8, "sliding_window": 128, "tie_word_embeddings": false,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-05, "num_experts_per_tok": 4,
        "swiglu_alpha": 1.702, "swiglu_limit": 7.0, "attention_bias": true, "rope_theta": 150000.0,
        "rope_parameters": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow":
        1.0, "truncate": false, "original_max_position_embeddings": 4096}})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"gpt_oss"},
               .defaults = kGptOssDefaults,
               .read_config = read_gpt_oss,
               .gguf_forms = {{.name = "gpt-oss",
                               .has_experts = true,
                               .class_name = "GptOssForCausalLM",
                               .has_output_bias = true,
                               .has_expert_biases = true,
                               .has_post_norm = true,
                               .has_windows = true,
                               .has_one_width = true,
                               .has_local_experts = true,
                               .router = "mlp.router",
                               .layer_names = kGptOssNames,
                               .write_config = write_gpt_oss}}},
    .build = build_gpt_oss}));

}  // namespace
}  // namespace vitrine::model
