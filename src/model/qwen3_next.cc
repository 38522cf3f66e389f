// SPDX-License-Identifier: Apache-2.0
// Qwen3-Next: most layers keep a state (Gated DeltaNet) in place of keys and values; the others'
// attention has a gate on its output. Experts beside a shared one, behind a sigmoid gate.
#include "checkpoint/delta_config.h"
#include "checkpoint/gguf_delta.h"
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_qwen3_next(const ModelConfig& config) {
  DecoderTraits traits;
  set_qwen3_next_layers(config, traits);
  traits.groups_linear_projections = config.linear_layout != LinearLayout::kConverted;
  traits.groups_linear_strengths = true;
  traits.normalize_top_k = config.norm_topk_prob.value_or(true);
  return build_decoder(config, traits);
}

void read_qwen3_next(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_delta_config(fields, config, /*may_be_whole=*/true);
}

constexpr const char* kQwen3NextDefaults =
    R"({"vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads":
        16, "intermediate_size": 5632, "num_key_value_heads": 2, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-06, "tie_word_embeddings": false, "attention_bias": false, "head_dim":
        256, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "decoder_sparse_step": 1,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "num_experts_per_tok":
        10, "num_experts": 512, "norm_topk_prob": true, "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"qwen3_next"},
               .defaults = kQwen3NextDefaults,
               .read_config = read_qwen3_next,
               .gguf_forms = {{.name = "qwen3next",
                               .has_experts = true,
                               .class_name = "Qwen3NextForCausalLM",
                               .normalizes_top_k = true,
                               .has_head_norms = true,
                               .has_output_bias = true,
                               .has_post_norm = true,
                               .rotates_part = true,
                               .has_linear_layers = true,
                               .shared_block = "mlp.shared_expert",
                               .layer_names = checkpoint::kGroupedLinearNames}}},
    .build = build_qwen3_next,
    .drafts = DraftLayers::kQwen}));

}  // namespace
}  // namespace vitrine::model
