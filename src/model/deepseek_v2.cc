// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V2 (2024): latent attention; scores by softmax, groups by their best expert.
#include <array>
#include <string>

#include "checkpoint/latent_config.h"
#include "checkpoint/rope_config.h"
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_deepseek_v2(const ModelConfig& config) {
  DecoderTraits traits;
  traits.output_bias = config.attention_bias;
  traits.group_score_is_best = true;
  traits.shared_block = "mlp.shared_experts";
  return build_decoder(config, traits);
}

void read_deepseek_v2(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_latent_heads(fields, config);
  config.rope_interleave = true;
  checkpoint::read_rope(fields, config);
  checkpoint::read_windows(fields, config);
  checkpoint::read_feed_forward(fields, config);
  checkpoint::check_routing(fields, config, "softmax", {"greedy", "group_limited_greedy"});
  if (fields.string("topk_method").value_or("greedy") == "greedy") {
    config.router_groups = config.router_chosen_groups = 1;
  }
}

constexpr std::array<std::string_view, 1> kDeepSeekV2Keys = {"rope.scaling.yarn_log_multiplier"};

void write_deepseek_v2(const checkpoint::GgufSource& source, checkpoint::OrderedJson& config) {
  checkpoint::write_decoder_fields(source, config);
  const std::string norm = source.key("expert_weights_norm");
  if (source.metadata.boolean(norm).value_or(false)) {
    source.metadata.unsupported(norm, "false, since the weights of this family are not normalized");
  }
  config["topk_method"] = "group_limited_greedy";
}

constexpr const char* kDeepSeekV2Defaults =
    R"({"vocab_size": 102400, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 11008, "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "mlp_bias": false,
        "first_k_dense_replace": 0, "kv_lora_rank": 512, "q_lora_rank": 1536, "n_routed_experts":
        64, "n_shared_experts": 2, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "routed_scaling_factor": 1.0, "topk_method": "greedy", "norm_topk_prob": false,
        "v_head_dim": 128, "moe_intermediate_size": 1407, "rope_theta": 10000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"deepseek_v2"},
               .defaults = kDeepSeekV2Defaults,
               .read_config = read_deepseek_v2,
               .gguf_forms = {{.name = "deepseek2",
                               .has_experts = true,
                               .class_name = "DeepseekV2ForCausalLM",
                               .has_latents = true,
                               .shared_block = "mlp.shared_experts",
                               .own_keys = kDeepSeekV2Keys,
                               .write_config = write_deepseek_v2}}},
    .build = build_deepseek_v2}));

}  // namespace
}  // namespace vitrine::model
