// SPDX-License-Identifier: Apache-2.0
// dots.llm1 (rednote 2025): DeepSeek-V3's routing in a decoder with norms of query and key, windows
// from some layer on.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_dots1(const ModelConfig& config) {
  DecoderTraits traits;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  traits.query_key_norm = true;
  set_deepseek_routing(config, traits);
  return build_decoder(config, traits);
}

bool dots1_slides(const checkpoint::Fields& fields, const ModelConfig& /*config*/, int64_t layer) {
  return checkpoint::has_window(fields) && layer >= checkpoint::max_window_layers(fields);
}

void read_dots1(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_decoder(fields, config, dots1_slides);
}

constexpr const char* kDots1Defaults =
    R"({"vocab_size": 152064, "hidden_size": 4608, "num_hidden_layers": 62, "num_attention_heads":
        32, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_key_value_heads": 32,
        "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0, "norm_topk_prob": false,
        "max_position_embeddings": 2048, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "attention_bias": false, "routed_scaling_factor": 1.0, "sliding_window": 4096,
        "max_window_layers": 62, "rope_theta": 10000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"dots1"},
               .defaults = kDots1Defaults,
               .read_config = read_dots1,
               .gguf_forms = {{.name = "dots1",
                               .has_experts = true,
                               .class_name = "Dots1ForCausalLM",
                               .normalizes_top_k = true,
                               .has_head_norms = true,
                               .has_output_bias = true,
                               .has_sigmoid = true,
                               .correction = "mlp.gate.e_score_correction_bias",
                               .shared_block = "mlp.shared_experts"}}},
    .build = build_dots1}));

}  // namespace
}  // namespace vitrine::model
