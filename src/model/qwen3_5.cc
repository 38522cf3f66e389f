// SPDX-License-Identifier: Apache-2.0
// Qwen3.5, dense and with experts: Qwen3-Next's layers, whose linear projections are tensors of
// their own. Of a model with vision, the text.
#include "checkpoint/delta_config.h"
#include "checkpoint/gguf_delta.h"
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_qwen3_5(const ModelConfig& config) {
  DecoderTraits traits;
  set_qwen3_next_layers(config, traits);
  traits.tiles_linear_heads = config.linear_layout == LinearLayout::kConverted &&
                              config.linear_value_heads > config.linear_key_heads;
  traits.normalize_top_k = config.norm_topk_prob.value_or(true);
  return build_decoder(config, traits);
}

void read_qwen3_5(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_delta_config(fields, config, /*may_be_whole=*/false);
  config.norm_topk_prob = true;  // it has no such field
}

constexpr const char* kQwen3_5Defaults =
    R"({"vocab_size": 248320, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        16, "intermediate_size": 12288, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false, "head_dim":
        256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25})";

constexpr const char* kQwen3_5DefaultsWithExperts =
    R"({"vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40, "num_attention_heads":
        16, "num_key_value_heads": 2, "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "head_dim": 256,
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, "num_experts_per_tok": 8, "num_experts": 256,
        "rope_theta": 10000.0, "partial_rotary_factor": 0.25})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"qwen3_5_text", "qwen3_5"},
               .defaults = kQwen3_5Defaults,
               .read_config = read_qwen3_5,
               .wrappers = {{"qwen3_5", false}},
               .gguf_forms = {{.name = "qwen35",
                               .class_name = "Qwen3_5ForCausalLM",
                               .has_head_norms = true,
                               .has_output_bias = true,
                               .has_post_norm = true,
                               .rotates_part = true,
                               .has_linear_layers = true,
                               .layer_names = checkpoint::kSingleLinearNames}}},
    .build = build_qwen3_5,
    .drafts = DraftLayers::kQwen}));
VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"qwen3_5_moe_text", "qwen3_5_moe"},
               .defaults = kQwen3_5DefaultsWithExperts,
               .read_config = read_qwen3_5,
               .wrappers = {{"qwen3_5_moe", false}},
               .gguf_forms = {{.name = "qwen35moe",
                               .has_experts = true,
                               .class_name = "Qwen3_5MoeForCausalLM",
                               .normalizes_top_k = true,
                               .has_head_norms = true,
                               .has_output_bias = true,
                               .has_post_norm = true,
                               .rotates_part = true,
                               .has_linear_layers = true,
                               .shared_block = "mlp.shared_expert",
                               .layer_names = checkpoint::kSingleLinearNames}}},
    .build = build_qwen3_5,
    .drafts = DraftLayers::kQwen}));

}  // namespace
}  // namespace vitrine::model
