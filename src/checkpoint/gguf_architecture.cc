// SPDX-License-Identifier: Apache-2.0
// The architectures that GGUF files name.
#include "gguf_delta.h"
#include "gguf_gemma.h"
#include "gguf_lfm.h"
#include "gguf_model.h"

namespace vitrine::checkpoint {
namespace {

constexpr GgufArchitecture kArchitectures[] = {
    {.name = "llama",
     .model_type = "llama",
     .class_name = "LlamaForCausalLM",
     .interleaved_rope = true,
     .has_output_bias = true},
    {.name = "llama",
     .has_experts = true,
     .model_type = "mixtral",
     .class_name = "MixtralForCausalLM",
     .interleaved_rope = true,
     .normalizes_top_k = true,
     .block = "block_sparse_moe",
     .router = "block_sparse_moe.gate",
     .gate = "w1",
     .up = "w3",
     .down = "w2"},
    {.name = "qwen2", .model_type = "qwen2", .class_name = "Qwen2ForCausalLM"},
    {.name = "qwen2moe",
     .has_experts = true,
     .model_type = "qwen2_moe",
     .class_name = "Qwen2MoeForCausalLM",
     .shared_block = "mlp.shared_expert"},
    {.name = "qwen3",
     .model_type = "qwen3",
     .class_name = "Qwen3ForCausalLM",
     .has_head_norms = true,
     .has_output_bias = true},
    {.name = "qwen3moe",
     .has_experts = true,
     .model_type = "qwen3_moe",
     .class_name = "Qwen3MoeForCausalLM",
     .normalizes_top_k = true,
     .has_head_norms = true,
     .has_output_bias = true},
    {.name = "olmoe",
     .has_experts = true,
     .model_type = "olmoe",
     .class_name = "OlmoeForCausalLM",
     .has_head_norms = true,
     .has_output_bias = true},
    {.name = "granitemoe",
     .has_experts = true,
     .model_type = "granitemoe",
     .class_name = "GraniteMoeForCausalLM",
     .interleaved_rope = true,
     .normalizes_top_k = true,
     .has_output_bias = true,
     .block = "block_sparse_moe",
     .router = "block_sparse_moe.router.layer"},
    {.name = "gpt-oss",
     .has_experts = true,
     .model_type = "gpt_oss",
     .class_name = "GptOssForCausalLM",
     .has_output_bias = true,
     .has_expert_biases = true,
     .has_post_norm = true,
     .router = "mlp.router"},
    {.name = "dots1",
     .has_experts = true,
     .model_type = "dots1",
     .class_name = "Dots1ForCausalLM",
     .normalizes_top_k = true,
     .has_head_norms = true,
     .has_output_bias = true,
     .correction = "mlp.gate.e_score_correction_bias",
     .shared_block = "mlp.shared_experts"},
    {.name = "glm4moe",
     .has_experts = true,
     .model_type = "glm4_moe",
     .class_name = "Glm4MoeForCausalLM",
     .normalizes_top_k = true,
     .has_head_norms = true,
     .has_post_norm = true,
     .rotates_part = true,
     .correction = "mlp.gate.e_score_correction_bias",
     .shared_block = "mlp.shared_experts"},
    {.name = "minimax-m2",
     .has_experts = true,
     .model_type = "minimax_m2",
     .class_name = "MiniMaxM2ForCausalLM",
     .normalizes_top_k = true,
     .has_head_norms = true,
     .has_output_bias = true,
     .rotates_part = true,
     .correction = "block_sparse_moe.e_score_correction_bias",
     .block = "block_sparse_moe",
     .router = "block_sparse_moe.gate",
     .gate = "w1",
     .up = "w3",
     .down = "w2"},
    {.name = "ernie4_5-moe",
     .has_experts = true,
     .model_type = "ernie4_5_moe",
     .class_name = "Ernie4_5_MoeForCausalLM",
     .normalizes_top_k = true,
     .has_output_bias = true,
     .correction = "mlp.moe_statics.e_score_correction_bias",
     .shared_block = "mlp.shared_experts"},
    {.name = "lfm2moe",
     .has_experts = true,
     .model_type = "lfm2_moe",
     .class_name = "Lfm2MoeForCausalLM",
     .normalizes_top_k = true,
     .has_head_norms = true,
     .has_convolutions = true,
     .correction = "feed_forward.expert_bias",
     .block = "feed_forward",
     .router = "feed_forward.gate",
     .dense_gate = "feed_forward.w1",
     .gate = "w1",
     .up = "w3",
     .down = "w2",
     .layer_names = kLfmLayerNames},
    {.name = "smollm3",
     .model_type = "smollm3",
     .class_name = "SmolLM3ForCausalLM",
     .interleaved_rope = true,
     .has_output_bias = true},
    {.name = "deepseek2",
     .has_experts = true,
     .model_type = "deepseek_v2",
     .class_name = "DeepseekV2ForCausalLM",
     .has_latents = true,
     .shared_block = "mlp.shared_experts"},
    {.name = "deepseek2",
     .has_experts = true,
     .model_type = "deepseek_v3",
     .class_name = "DeepseekV3ForCausalLM",
     .has_latents = true,
     .correction = "mlp.gate.e_score_correction_bias",
     .shared_block = "mlp.shared_experts"},
    {.name = "qwen3next",
     .has_experts = true,
     .model_type = "qwen3_next",
     .class_name = "Qwen3NextForCausalLM",
     .normalizes_top_k = true,
     .has_head_norms = true,
     .has_output_bias = true,
     .has_post_norm = true,
     .rotates_part = true,
     .has_linear_layers = true,
     .shared_block = "mlp.shared_expert",
     .layer_names = kGroupedLinearNames},
    {.name = "qwen35",
     .model_type = "qwen3_5_text",
     .class_name = "Qwen3_5ForCausalLM",
     .has_head_norms = true,
     .has_output_bias = true,
     .has_post_norm = true,
     .rotates_part = true,
     .has_linear_layers = true,
     .layer_names = kSingleLinearNames},
    {.name = "qwen35moe",
     .has_experts = true,
     .model_type = "qwen3_5_moe_text",
     .class_name = "Qwen3_5MoeForCausalLM",
     .normalizes_top_k = true,
     .has_head_norms = true,
     .has_output_bias = true,
     .has_post_norm = true,
     .rotates_part = true,
     .has_linear_layers = true,
     .shared_block = "mlp.shared_expert",
     .layer_names = kSingleLinearNames},
    kGemmaDense,
    kGemmaExperts,
};

}  // namespace

const GgufArchitecture& find_gguf_architecture(const GgufMetadata& metadata,
                                               const std::vector<TensorInfo>& tensors) {
  constexpr std::string_view kKey = "general.architecture";
  const std::string name = metadata.required_string(kKey);
  const std::string count_key = name + ".expert_count";
  const bool has_experts = metadata.integer(count_key, 0, kMaxExperts).value_or(0) > 0;
  std::string known;
  bool is_known = false;
  for (const GgufArchitecture& architecture : kArchitectures) {
    if (architecture.name == name && architecture.has_experts == has_experts &&
        (!architecture.has_latents || fits_scores(architecture, metadata, tensors))) {
      return architecture;
    }
    is_known |= architecture.name == name;
    const std::string entry =
        std::string(architecture.name) + (architecture.name == "llama" ? ""
                                          : architecture.has_experts   ? " (with experts)"
                                                                       : " (without experts)");
    if (known.find(entry) == known.npos) known += (known.empty() ? "" : ", ") + entry;
  }
  if (is_known) {
    metadata.unsupported(count_key, has_experts
                                        ? "0: models of this architecture have no experts"
                                        : "the number of experts, which this architecture has");
  }
  metadata.unsupported(kKey, "one of " + known);
}

}  // namespace vitrine::checkpoint
