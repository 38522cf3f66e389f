// SPDX-License-Identifier: Apache-2.0
#include "model_config.h"

#include <set>

#include "config_limits.h"
#include "family.h"
#include "fields.h"
#include "text.h"
#include "wrapper.h"

namespace vitrine {
namespace {

using checkpoint::Fields;
using checkpoint::kMaxLayers;
using checkpoint::kMaxPositions;
using checkpoint::kMaxVocabulary;
using checkpoint::kMaxWidth;

DType parse_dtype(const Fields& fields) {
  const char* field = fields.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  std::string name = fields.string(field).value_or("float32");
  if (name.starts_with("torch.")) name.erase(0, 6);
  if (name == "float32") return DType::kF32;
  if (name == "float16") return DType::kF16;
  if (name == "bfloat16") return DType::kBF16;
  fields.unsupported(field, "'float32', 'float16' or 'bfloat16'");
}

}  // namespace

ModelConfig parse_model_config(std::string_view config_json, const std::string& config_name,
                               std::string_view generation_config_json,
                               const std::string& generation_config_name) {
  const checkpoint::TextConfig text =
      checkpoint::text_config(parse_json_object(config_json, config_name), config_name);
  const Fields fields(text.fields, text.place);
  ModelConfig config;
  const auto model_type = fields.string("model_type");
  if (!model_type || model_type->empty()) fields.bad("model_type", "the architecture's name");
  config.model_type = *model_type;
  const checkpoint::Family usual;
  const checkpoint::Family* found = checkpoint::find_family(config.model_type);
  const checkpoint::Family& family = found == nullptr ? usual : *found;
  if (!family.refusal.empty()) fields.unsupported("model_type", std::string(family.refusal));
  config.architectures = fields.strings("architectures");
  config.vocab_size = fields.required_integer("vocab_size", 1, kMaxVocabulary);
  config.hidden_size = fields.required_integer("hidden_size", 1, kMaxWidth);
  config.num_layers = fields.required_integer("num_hidden_layers", 1, kMaxLayers);
  config.max_position_embeddings =
      fields.required_integer("max_position_embeddings", 1, kMaxPositions);
  const auto epsilon = fields.number(family.epsilon, 0.0, 1.0);
  if (!epsilon || *epsilon == 0.0) fields.bad(family.epsilon, "a number above 0, at most 1");
  config.rms_norm_eps = *epsilon;
  config.tie_word_embeddings =
      fields
          .boolean(fields.find("tie_embedding") != nullptr ? "tie_embedding"
                                                           : "tie_word_embeddings")
          .value_or(false);
  config.dtype = parse_dtype(fields);
  if (fields.string("hidden_act").value_or("silu") != "silu") {
    fields.unsupported("hidden_act", "'silu'");
  }
  config.embedding_multiplier = fields.number("embedding_multiplier", 1e-9, 1e9).value_or(1.0);
  family.read_config(fields, config);
  config.residual_multiplier = fields.number("residual_multiplier", 1e-9, 1e9).value_or(1.0);
  config.logits_scaling = fields.number("logits_scaling", 1e-9, 1e9).value_or(1.0);

  std::set<int64_t> end_ids;
  const auto read_ids = [&](const Fields& from) {
    constexpr size_t kMaxIds = 1024;
    for (int64_t id : from.integers("eos_token_id", 0, config.vocab_size - 1, kMaxIds)) {
      end_ids.insert(id);
    }
    const auto begin_ids = from.integers("bos_token_id", 0, config.vocab_size - 1, 1);
    if (!config.bos_token_id && !begin_ids.empty()) config.bos_token_id = begin_ids[0];
  };
  read_ids(fields);
  if (!generation_config_json.empty()) {
    const nlohmann::json generation =
        parse_json_object(generation_config_json, generation_config_name);
    read_ids(Fields(generation, generation_config_name));
  }
  config.eos_token_ids.assign(end_ids.begin(), end_ids.end());
  return config;
}

ModelConfig parse_model_config(const Checkpoint& checkpoint) {
  ModelConfig config = parse_model_config(
      checkpoint.config_json(), checkpoint.config_name(), checkpoint.generation_config_json(),
      checkpoint.is_gguf() ? checkpoint.config_name()
                           : checkpoint.path() + "/generation_config.json");
  // A file that has a head decides, as in transformers: it is the embedding only where both hold
  // the same numbers.
  constexpr const char* kHead = "lm_head";
  if (checkpoint.find(std::string(kHead) + ".weight") != nullptr ||
      checkpoint.find_quantized(kHead) != nullptr) {
    config.tie_word_embeddings = false;
  }
  return config;
}

ModelFacts read_model_facts(const Checkpoint& checkpoint) { return parse_model_config(checkpoint); }

}  // namespace vitrine
