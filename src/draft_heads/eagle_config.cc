// SPDX-License-Identifier: Apache-2.0
#include "draft_heads/eagle_config.h"

#include <algorithm>
#include <set>

#include "checkpoint/fields.h"
#include "core/json_text.h"
#include "kernels/cpu/kv_limits.h"

namespace vitrine::draft_heads {

namespace {

using checkpoint::Fields;

constexpr size_t kMaxFeatureLayers = 64;
constexpr int64_t kMaxLayerId = 1 << 20;
constexpr int64_t kMaxTrainedGuesses = 1 << 16;
constexpr const char* kLayerIds = "eagle_aux_hidden_state_layer_ids";

bool ends_a_tensor(const Checkpoint& heads, std::string_view suffix) {
  return std::ranges::any_of(heads.tensors(),
                             [&](const TensorInfo& info) { return info.name.ends_with(suffix); });
}

/// Heads of other kinds, told by their tensors.
void refuse_other_tensors(const Checkpoint& heads, bool is_parallel) {
  const bool has_fc = heads.find("fc.weight") != nullptr;
  if (has_fc && !ends_a_tensor(heads, "hidden_norm.weight")) {
    throw Error(ErrorKind::kUnsupported,
                heads.path() +
                    ": holds heads of EAGLE-1 or EAGLE-2 (there is a tensor 'fc.weight' "
                    "and none named hidden_norm); expected EAGLE-3's");
  }
  const bool has_masks = heads.find("mask_hidden") != nullptr;
  if (has_masks == is_parallel) return;
  throw Error(ErrorKind::kBadFile,
              heads.path() + (is_parallel ? ": has no tensor 'mask_hidden', as heads of P-EAGLE "
                                            "have; expected those, or the kind 'eagle3'"
                                          : ": has a tensor 'mask_hidden', as heads of P-EAGLE "
                                            "have; expected heads of EAGLE-3, or 'peagle'"));
}

/// transformers' defaults, which configs of `speculators` leave out.
void add_defaults(nlohmann::json& layer) {
  const bool is_qwen = layer.value("model_type", "qwen3") == "qwen3";
  nlohmann::json defaults = {{"model_type", "qwen3"},
                             {"hidden_size", 4096},
                             {"num_hidden_layers", 32},
                             {"num_attention_heads", 32},
                             {"rms_norm_eps", 1e-6},
                             {"vocab_size", is_qwen ? 151936 : 32000},
                             {"intermediate_size", is_qwen ? 22016 : 11008},
                             {"max_position_embeddings", is_qwen ? 32768 : 2048}};
  if (is_qwen) defaults.update({{"head_dim", 128}, {"num_key_value_heads", 32}});
  for (const auto& [name, value] : defaults.items()) {
    if (!layer.contains(name) || layer[name].is_null()) layer[name] = value;
  }
}

/// Acceptance by which the text would be another, and how many guesses were trained for.
int32_t read_proposals(const Fields& fields) {
  const auto methods_of = fields.object("speculators_config");
  if (!methods_of) return 0;
  const nlohmann::json* methods = methods_of->find("proposal_methods");
  if (methods == nullptr) return 0;
  if (!methods->is_array()) methods_of->bad("proposal_methods", "a list of objects");
  int64_t most = 0;
  for (const nlohmann::json& method : *methods) {
    if (!method.is_object()) methods_of->bad("proposal_methods", "a list of objects");
    const Fields own(method, methods_of->place() + ": proposal_methods");
    if (own.integer("verifier_accept_k", 0, INT64_MAX).value_or(1) > 1) {
      own.unsupported("verifier_accept_k",
                      "1: guesses that are not the model's own choice would change the text");
    }
    if (own.number("accept_tolerance", 0.0, 1e9).value_or(0.0) > 0.0) {
      own.unsupported("accept_tolerance",
                      "0: guesses that are not the model's own choice would change the text");
    }
    most = std::max(most, own.integer("speculative_tokens", 1, kMaxTrainedGuesses).value_or(0));
  }
  return static_cast<int32_t>(most);
}

/// The decoder layers' config, which `speculators` writes as an object of its own.
ModelConfig read_layer_config(const Fields& fields, const nlohmann::json& whole, bool is_wrapped) {
  nlohmann::json layer = whole;
  std::string place = fields.place();
  if (is_wrapped) {
    const auto inner = fields.object("transformer_layer_config");
    if (!inner) fields.bad("transformer_layer_config", "an object, the config of a decoder layer");
    layer = *fields.find("transformer_layer_config");
    place = inner->place();
    add_defaults(layer);
  }
  const Fields own(layer, place);
  const std::string model_type = own.string("model_type").value_or("");
  if (model_type != "llama" && model_type != "qwen3") {
    own.unsupported("model_type", "'llama' or 'qwen3', the layers that such heads have");
  }
  ModelConfig config = parse_model_config(layer.dump(), place);
  if (config.num_experts > 0) own.unsupported("num_experts", "none: the heads' layers are dense");
  if (config.head_dim > kernels::kMaxHeadDim) {
    own.unsupported("head_dim", "at most " + std::to_string(kernels::kMaxHeadDim));
  }
  return config;
}

[[noreturn]] void refuse_layers(const std::string& place, const std::string& found,
                                const TargetModel& target, ErrorKind kind) {
  throw Error(kind, place + " " + found + "; expected layers from 0 to " +
                        std::to_string(target.config.num_layers) + ", the depth of " +
                        target.checkpoint.path() + ", each once");
}

void check_layers(const std::string& place, const std::vector<int>& layers,
                  const TargetModel& target, ErrorKind kind) {
  std::set<int> seen;
  for (const int layer : layers) {
    if (layer < 0 || layer > target.config.num_layers) {
      refuse_layers(place, "names layer " + std::to_string(layer), target, kind);
    }
    if (!seen.insert(layer).second) {
      refuse_layers(place, "names layer " + std::to_string(layer) + " twice", target, kind);
    }
  }
}

/// As they are entered. vLLM and `speculators` name layers so; SGLang and SpecForge, in
/// `eagle_config`, by the layer whose output it is.
std::vector<int> read_layers(const Fields& fields, const HeadSources& sources) {
  const TargetModel& target = sources.target;
  if (!sources.layers.empty()) {
    check_layers("option 'layers' of draft heads", sources.layers, target,
                 ErrorKind::kInvalidArgument);
    return sources.layers;
  }
  std::vector<int> layers;
  const auto append = [&](const Fields& from, int behind) {
    for (const int64_t id : from.integers(kLayerIds, 0, kMaxLayerId, kMaxFeatureLayers)) {
      layers.push_back(static_cast<int>(id) + behind);
    }
    check_layers(from.place() + ": field '" + kLayerIds + "'", layers, target, ErrorKind::kBadFile);
  };
  append(fields, 0);
  const auto outer = fields.object("eagle_config");
  if (layers.empty() && outer) append(*outer, 1);
  if (!layers.empty()) return layers;
  const auto depth = static_cast<int>(target.config.num_layers);
  if (depth < 6) {  // too shallow for three layers
    fields.bad(kLayerIds, "the layers of " + target.checkpoint.path() + ", which has " +
                              std::to_string(depth) +
                              ", too few for the usual ones; name them by --head-layers "
                              "(DraftHeadOptions::layers)");
  }
  return {2, depth / 2, depth - 3};
}

void read_mask(const Fields& fields, EagleConfig& config) {
  const int64_t most = config.layer.vocab_size - 1;
  if (const auto inner = fields.object("dflash_config")) {
    if (const auto token = inner->integer("mask_token_id", 0, most)) {
      config.mask_token = static_cast<int32_t>(*token);
      return;
    }
  }
  for (const char* name : {"pard_token", "ptd_token_id"}) {
    if (const auto token = fields.integer(name, 0, most)) {
      config.mask_token = static_cast<int32_t>(*token);
      return;
    }
  }
  config.mask_token = static_cast<int32_t>(fields.required_integer("mask_token_id", 0, most));
}

void check_target(const Fields& fields, const EagleConfig& config, const TargetModel& target) {
  const std::string model = target.checkpoint.path();
  const auto hidden = fields.integer("target_hidden_size", 1, INT64_MAX);
  if (hidden.value_or(config.layer.hidden_size) != target.config.hidden_size) {
    throw Error(ErrorKind::kBadFile, fields.place() + ": field '" +
                                         (hidden ? "target_hidden_size" : "hidden_size") + "' is " +
                                         std::to_string(hidden.value_or(config.layer.hidden_size)) +
                                         "; expected " + std::to_string(target.config.hidden_size) +
                                         ", the hidden size of " + model);
  }
  if (config.layer.vocab_size != target.config.vocab_size) {
    throw Error(ErrorKind::kBadFile, fields.place() + ": field 'vocab_size' is " +
                                         std::to_string(config.layer.vocab_size) + "; expected " +
                                         std::to_string(target.config.vocab_size) +
                                         ", the tokens of " + model);
  }
}

}  // namespace

EagleConfig read_eagle_config(const HeadSources& sources, bool is_parallel) {
  const Checkpoint& heads = sources.heads;
  const nlohmann::json whole = parse_json_object(heads.config_json(), heads.config_name());
  const Fields fields(whole, heads.config_name());
  const auto written_as = fields.string("speculators_model_type");
  const std::string kind = is_parallel ? "peagle" : "eagle3";
  if (written_as && *written_as != kind) {
    fields.unsupported(
        "speculators_model_type",
        "'" + kind + "'" + (*written_as == "eagle" ? " (EAGLE-1 and EAGLE-2 are not read)" : ""));
  }
  refuse_other_tensors(heads, is_parallel);
  EagleConfig config;
  config.layer = read_layer_config(fields, whole, written_as.has_value());
  config.query_key_norm = config.layer.model_type == "qwen3";
  check_target(fields, config, sources.target);
  config.draft_vocabulary = fields.integer("draft_vocab_size", 1, config.layer.vocab_size)
                                .value_or(config.layer.vocab_size);
  const auto outer = fields.object("eagle_config");
  const auto flag = [&](const char* name, bool otherwise) {
    const auto own = fields.boolean(name);
    return own ? *own : outer ? outer->boolean(name).value_or(otherwise) : otherwise;
  };
  if (outer && !outer->boolean("use_aux_hidden_state").value_or(true)) {
    outer->unsupported("use_aux_hidden_state", "true: heads of EAGLE-3 read several layers");
  }
  config.norm_before_residual = flag("norm_before_residual", false);
  config.norm_before_fc = flag("norm_before_fc", heads.find("input_norm.weight") != nullptr);
  config.fc_norm = flag("fc_norm", heads.find("fc_norm.0.weight") != nullptr ||
                                       heads.find("fcs.0.weight") != nullptr);
  config.norm_output = flag("norm_output", false);
  if (config.norm_before_fc && config.fc_norm) {
    fields.bad("fc_norm", "false where norm_before_fc is true");
  }
  config.layers = read_layers(fields, sources);
  config.trained_guesses = read_proposals(fields);
  if (is_parallel) read_mask(fields, config);
  return config;
}

}  // namespace vitrine::draft_heads
