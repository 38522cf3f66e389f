// SPDX-License-Identifier: Apache-2.0
// Private to the room: Gemma 4 in GGUF files (gemma4): its rows of the table of architectures, and
// its fields of config.json.
#pragma once

#include <array>
#include <span>

#include "gguf_model.h"

namespace vitrine::checkpoint {

/// The inputs of single layers (E2B, E4B).
inline constexpr std::array kGemmaModelNames = {
    GgufName{"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
    GgufName{"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
    GgufName{"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"},
};

/// The experts' are the last ones.
inline constexpr std::array kGemmaLayerNames = {
    GgufName{"post_attention_norm.weight", "post_attention_layernorm.weight"},
    GgufName{"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
    GgufName{"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
    GgufName{"layer_output_scale.weight", "layer_scalar"},
    GgufName{"inp_gate.weight", "per_layer_input_gate.weight"},
    GgufName{"proj.weight", "per_layer_projection.weight"},
    GgufName{"post_norm.weight", "post_per_layer_input_norm.weight"},
    GgufName{"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"},
    GgufName{"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"},
    GgufName{"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"},
    GgufName{"ffn_gate_inp.scale", "router.scale"},
    GgufName{"ffn_down_exps.scale", "router.per_expert_scale"},
};
inline constexpr size_t kGemmaExpertNames = 5;

inline constexpr GgufArchitecture kGemmaDense = {
    .name = "gemma4",
    .model_type = "gemma4_text",
    .class_name = "Gemma4ForCausalLM",
    .has_head_norms = true,
    .model_names = kGemmaModelNames,
    .layer_names = std::span(kGemmaLayerNames).first(kGemmaLayerNames.size() - kGemmaExpertNames)};

inline constexpr GgufArchitecture kGemmaExperts = {.name = "gemma4",
                                                   .has_experts = true,
                                                   .model_type = "gemma4_text",
                                                   .class_name = "Gemma4ForCausalLM",
                                                   .has_head_norms = true,
                                                   .block = "",
                                                   .router = "router.proj",
                                                   .model_names = kGemmaModelNames,
                                                   .layer_names = kGemmaLayerNames};

inline bool is_gemma(const GgufArchitecture& architecture) {
  return architecture.name == kGemmaDense.name;
}

/// Heads, kinds of layers, rotary parameters, blocks and what else the family has, behind the sizes
/// that all models have. `tensors` are mapped ones, in order of name. Throws kBadFile, kUnsupported
/// naming the key or the tensor.
void write_gemma(const GgufMetadata& metadata, const std::vector<TensorInfo>& tensors,
                 const std::vector<float>& rope_factors, nlohmann::ordered_json& config);

}  // namespace vitrine::checkpoint
