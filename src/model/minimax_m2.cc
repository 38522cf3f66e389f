// SPDX-License-Identifier: Apache-2.0
// MiniMax-M2 (2025): scores by sigmoid, norms of whole rows of query and key.
#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_minimax_m2(const ModelConfig& config) {
  DecoderTraits traits;
  traits.query_key_norm = traits.norm_whole_row = true;
  traits.score = ops::RouterParameters::Score::kSigmoid;
  traits.correction = "block_sparse_moe.e_score_correction_bias";
  traits.normalize_top_k = true;
  set_mixtral_names(traits);
  return build_decoder(config, traits);
}

void read_minimax_m2(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_decoder(fields, config, /*slides=*/nullptr, /*rotates_part=*/true);
}

constexpr const char* kMiniMaxM2Defaults =
    R"({"vocab_size": 200064, "hidden_size": 3072, "num_hidden_layers": 62, "num_attention_heads":
        48, "intermediate_size": 1536, "num_key_value_heads": 8, "head_dim": 128,
        "max_position_embeddings": 196608, "rms_norm_eps": 1e-06, "tie_word_embeddings": false,
        "num_experts_per_tok": 8, "num_local_experts": 256, "rope_theta": 5000000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"minimax_m2"},
               .defaults = kMiniMaxM2Defaults,
               .read_config = read_minimax_m2,
               .gguf_forms = {{.name = "minimax-m2",
                               .has_experts = true,
                               .class_name = "MiniMaxM2ForCausalLM",
                               .normalizes_top_k = true,
                               .has_head_norms = true,
                               .has_output_bias = true,
                               .rotates_part = true,
                               .has_one_width = true,
                               .has_local_experts = true,
                               .has_sigmoid = true,
                               .correction = "block_sparse_moe.e_score_correction_bias",
                               .block = "block_sparse_moe",
                               .router = "block_sparse_moe.gate",
                               .gate = "w1",
                               .up = "w3",
                               .down = "w2"}}},
    .build = build_minimax_m2}));

}  // namespace
}  // namespace vitrine::model
