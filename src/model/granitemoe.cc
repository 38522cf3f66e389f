// SPDX-License-Identifier: Apache-2.0
// Granite 3 mixture of experts: multipliers on embedding, attention, residual and logits, and a
// softmax over the chosen router logits alone.
#include <array>
#include <cmath>
#include <string>

#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_granitemoe(const ModelConfig& config) {
  DecoderTraits traits;
  traits.attention_scale = 1.0;
  traits.softmax_after_top_k = true;
  traits.qkv_bias = traits.output_bias = config.attention_bias;
  traits.block = "block_sparse_moe";
  traits.router = "block_sparse_moe.router.layer";
  return build_decoder(config, traits);
}

void read_granite(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_decoder_config(fields, config);
  config.norm_topk_prob = true;  // it has no such field
}

constexpr std::array<std::string_view, 4> kGraniteScales = {"attention.scale", "embedding_scale",
                                                            "residual_scale", "logit_scale"};

void write_granite(const checkpoint::GgufSource& source, checkpoint::OrderedJson& config) {
  // The key says whether heads are rotated at all.
  const std::string finetuned = source.key("rope.scaling.finetuned");
  if (!source.metadata.boolean(finetuned).value_or(true)) {
    source.metadata.unsupported(finetuned, "true");
  }
  checkpoint::write_decoder_fields(source, config);
  const auto copy = [&](const char* from, const char* to) {
    const auto value = source.metadata.number(source.key(from), 0.0, 1e9);
    if (value && *value != 0.0) config[to] = *value;
    return value && *value != 0.0;
  };
  copy("embedding_scale", "embedding_multiplier");
  copy("residual_scale", "residual_multiplier");
  copy("logit_scale", "logits_scaling");
  if (!copy("attention.scale", "attention_multiplier")) {
    config["attention_multiplier"] = 1.0 / std::sqrt(config["head_dim"].get<double>());
  }
}

constexpr const char* kGraniteDefaults =
    R"({"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads":
        32, "intermediate_size": 11008, "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
        "tie_word_embeddings": false, "attention_bias": false, "embedding_multiplier": 1.0,
        "logits_scaling": 1.0, "residual_multiplier": 1.0, "attention_multiplier": 1.0,
        "num_local_experts": 8, "num_experts_per_tok": 2, "rope_theta": 10000.0})";

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"granitemoe"},
               .defaults = kGraniteDefaults,
               .read_config = read_granite,
               .gguf_forms = {{.name = "granitemoe",
                               .has_experts = true,
                               .class_name = "GraniteMoeForCausalLM",
                               .interleaved_rope = true,
                               .normalizes_top_k = true,
                               .has_output_bias = true,
                               .has_one_width = true,
                               .has_local_experts = true,
                               .block = "block_sparse_moe",
                               .router = "block_sparse_moe.router.layer",
                               .own_keys = kGraniteScales,
                               .write_config = write_granite}}},
    .build = build_granitemoe}));

}  // namespace
}  // namespace vitrine::model
