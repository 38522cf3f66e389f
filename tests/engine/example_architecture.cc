// SPDX-License-Identifier: Apache-2.0
// An architecture as whoever adds one writes it: this file, and its line in CMakeLists.txt. It
// computes what Qwen3 does, and its files say it in words of their own: other names of tensors and
// fields, and a number of queries that share a key in place of a number of key-value heads.
#include <array>

#include "model/architecture.h"
#include "model/decoder.h"

namespace vitrine::model {
namespace {

ops::Graph build_example(const ModelConfig& config) {
  DecoderTraits traits;
  traits.query_key_norm = true;
  traits.input_norm = "first_norm";
  traits.block_norm = "second_norm";
  return build_decoder(config, traits);
}

void read_example(const checkpoint::Fields& fields, ModelConfig& config) {
  checkpoint::read_decoder_config(fields, config);
  const int64_t sharing = fields.required_integer("queries_per_key", 1, config.num_heads);
  if (config.num_heads % sharing != 0) fields.bad("queries_per_key", "a divisor of the heads");
  config.num_kv_heads = config.num_heads / sharing;
}

constexpr std::array kExampleNames = {
    checkpoint::GgufName{"attn_norm.weight", "first_norm.weight"},
    checkpoint::GgufName{"ffn_norm.weight", "second_norm.weight"},
};

void write_example(const checkpoint::GgufSource& source, checkpoint::OrderedJson& config) {
  checkpoint::write_decoder_fields(source, config);
  config["norm_epsilon"] = config["rms_norm_eps"];
  config["queries_per_key"] =
      config["num_attention_heads"].get<int64_t>() / config["num_key_value_heads"].get<int64_t>();
}

VITRINE_REGISTER_ARCHITECTURE((Architecture{
    .family = {.model_types = {"example_text", "example"},
               .defaults = R"({"rope_theta": 10000.0, "head_dim": 32, "queries_per_key": 2})",
               .epsilon = "norm_epsilon",
               .read_config = read_example,
               .wrappers = {{"example_that_sees", false}},
               .gguf_forms = {{.name = "example-gguf",
                               .class_name = "ExampleForCausalLM",
                               .has_head_norms = true,
                               .layer_names = kExampleNames,
                               .write_config = write_example}}},
    .build = build_example}));

}  // namespace
}  // namespace vitrine::model
