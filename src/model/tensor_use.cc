// SPDX-License-Identifier: Apache-2.0
#include "model/tensor_use.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <string_view>

#include "model/latent_halves.h"
#include "model/named_vector.h"

namespace vitrine::model {
namespace {

constexpr std::string_view kLayerPrefix = "model.layers.";

/// Returns the layer of a name ("model.layers.7.mlp.…": 7), or -1.
int64_t layer_of(std::string_view name) {
  int64_t layer = -1;
  if (!name.starts_with(kLayerPrefix)) return layer;
  std::from_chars(name.data() + kLayerPrefix.size(), name.data() + name.size(), layer);
  return layer;
}

/// Returns whether one of the parts of a name between its points is one of these.
template <size_t count>
bool has_part(std::string_view name, const std::array<std::string_view, count>& parts) {
  while (!name.empty()) {
    const size_t point = name.find('.');
    if (std::ranges::find(parts, name.substr(0, point)) != parts.end()) return true;
    if (point == name.npos) break;
    name.remove_prefix(point + 1);
  }
  return false;
}

template <size_t count>
bool has_end(std::string_view name, const std::array<std::string_view, count>& ends) {
  return std::ranges::any_of(ends, [&](std::string_view end) { return name.ends_with(end); });
}

/// Says of a tensor that it belongs to a wrapper around a text model, outside of its layers.
bool sees_or_hears(std::string_view name, const ModelConfig&) {
  static constexpr std::array<std::string_view, 16> kParts = {
      "visual",         "vision_tower",          "vision_model",    "vision_encoder",
      "vision_adapter", "multi_modal_projector", "mm_projector",    "vision_language_adapter",
      "embed_vision",   "vision_embedder",       "patch_merger",    "pre_mm_projector_norm",
      "audio_tower",    "audio_model",           "audio_projector", "embed_audio"};
  return layer_of(name) < 0 && has_part(name, kParts);
}

/// Says of a tensor that it belongs to a layer that drafts: behind the last one as the config
/// counts them, or named so.
bool drafts(std::string_view name, const ModelConfig& config) {
  if (name.starts_with("mtp.") || name.starts_with("model.mtp")) return true;
  const int64_t layer = layer_of(name);
  return layer >= config.num_layers && layer < config.num_layers + config.num_draft_layers;
}

/// Tables that old files hold and that follow from the config.
bool is_rotary_table(std::string_view name, const ModelConfig&) {
  return name.ends_with("rotary_emb.inv_freq");
}

/// Rows are quantized by what they hold, but for folders of integers that ask for other scales,
/// which are then a part of their modules.
bool scales_activations(std::string_view name, const ModelConfig&) {
  static constexpr std::array<std::string_view, 8> kEnds = {
      ".input_scale", ".activation_scale", ".input_zero_point",   ".k_scale",
      ".v_scale",     ".output_scale",     ".input_global_scale", ".kv_cache_scale"};
  return has_end(name, kEnds);
}

/// gemma4's E form: layers that read the keys and values of others, whose own some files hold.
bool makes_shared_keys(std::string_view name, const ModelConfig& config) {
  const int64_t layer = layer_of(name);
  if (layer < 0 || layer >= config.num_layers || config.kv_source(layer) == layer) return false;
  static constexpr std::array<std::string_view, 4> kParts = {"k_proj", "v_proj", "k_norm",
                                                             "v_norm"};
  return has_part(name, kParts);
}

/// What a model runs without, as in transformers.
struct Unneeded {
  const char* purpose;
  bool (*holds)(std::string_view name, const ModelConfig& config);
};
constexpr std::array kUnneeded = {
    Unneeded{"vision and audio", sees_or_hears},  Unneeded{"drafting", drafts},
    Unneeded{"rotary tables", is_rotary_table},   Unneeded{"activation scales", scales_activations},
    Unneeded{"shared layers", makes_shared_keys},
};

/// Returns null for a tensor that is none of these.
const Unneeded* find_unneeded(std::string_view name, const ModelConfig& config) {
  const auto* const found = std::ranges::find_if(
      kUnneeded, [&](const Unneeded& kind) { return kind.holds(name, config); });
  return found == kUnneeded.end() ? nullptr : found;
}

/// Marks the tensors that a graph reads.
class UsedTensors {
 public:
  explicit UsedTensors(const Checkpoint& checkpoint)
      : checkpoint_(checkpoint), used_(checkpoint.tensors().size(), false) {}

  void add(const ops::WeightNames& names) {
    for (const std::string& module : names.products) add_matrix(module);
    for (const auto* matrices : {&names.float_products, &names.tables}) {
      for (const ops::NamedWeight& matrix : *matrices) add_matrix(matrix.name);
    }
    for (const ops::NamedWeight& vector : names.vectors) add_tensor(stored_name(vector.name));
  }
  bool holds(size_t index) const { return used_[index]; }
  /// Whether the checkpoint has all of them.
  bool has_all() const { return has_all_; }

 private:
  void add_tensor(const std::string& name) { add_info(checkpoint_.find(name)); }

  void add_info(const TensorInfo* info) {
    if (info == nullptr) {
      has_all_ = false;
    } else {
      used_[static_cast<size_t>(info - checkpoint_.tensors().data())] = true;
    }
  }

  void add_matrix(const std::string& module) {
    if (const auto halves = find_latent_halves(checkpoint_, module)) {
      add_info(halves->keys);
      return add_info(halves->values);
    }
    const auto tensors = checkpoint_.find_quantized_tensors(module);
    if (!tensors) return add_tensor(module + ".weight");
    add_info(tensors->numbers);
    add_info(tensors->scales);
    if (tensors->zero_points != nullptr) add_info(tensors->zero_points);
    for (const TensorInfo* info : tensors->others) add_info(info);
  }

  const Checkpoint& checkpoint_;
  std::vector<bool> used_;  // as the checkpoint's tensors
  bool has_all_ = true;
};

void count(const TensorInfo& info, TensorCount& total) {
  ++total.tensors;
  total.bytes += info.stored_bytes;
}

/// Throws kBadFile, or logs it.
void report_unused(const Checkpoint& checkpoint, const TensorUse& use, bool lenient) {
  if (use.unused_names.empty()) return;
  constexpr size_t kMostNamed = 6;
  std::string names;
  for (size_t i = 0; i < std::min(use.unused_names.size(), kMostNamed); ++i) {
    names += (i == 0 ? "" : ", ") + ("'" + use.unused_names[i] + "'");
  }
  const size_t more = use.unused_names.size() - std::min(use.unused_names.size(), kMostNamed);
  if (more > 0) names += " and " + std::to_string(more) + " more";
  const bool is_one = use.unused_names.size() == 1;
  const std::string what = checkpoint.path() + ": the model that " + checkpoint.config_name() +
                           " describes has no use for " + std::to_string(use.unused_names.size()) +
                           (is_one ? " tensor" : " tensors") + " of the weight files (" + names +
                           ")";
  if (lenient) return log_message(LogLevel::kWarning, what + "; it runs without");
  throw Error(ErrorKind::kBadFile,
              what +
                  "; expected a config that fits them, or lenient weights (--lenient-weights, "
                  "engine option 'lenient_weights') to run without");
}

}  // namespace

const char* purpose_beside_model(std::string_view name, const ModelConfig& config) {
  const Unneeded* found = find_unneeded(name, config);
  return found == nullptr ? nullptr : found->purpose;
}

TensorUse find_tensor_use(const Checkpoint& checkpoint, const ModelConfig& config,
                          const ops::Graph& graph, bool lenient) {
  UsedTensors used(checkpoint);
  for (const ops::OpNode& node : graph.nodes) {
    ops::WeightNames names;
    node.parameters->append_weights(names);
    used.add(names);
  }
  TensorUse use;
  std::array<TensorCount, kUnneeded.size()> unneeded = {};
  std::set<std::string> names;
  for (size_t i = 0; i < checkpoint.tensors().size(); ++i) {
    const TensorInfo& info = checkpoint.tensors()[i];
    if (used.holds(i)) {
      count(info, use.used);
      continue;
    }
    if (const Unneeded* found = find_unneeded(info.name, config)) {
      count(info, unneeded[static_cast<size_t>(found - kUnneeded.data())]);
      continue;
    }
    count(info, use.unused);
    names.insert(info.fused_from.empty() ? checkpoint.name_in_file(info.name) : info.fused_from);
  }
  for (size_t i = 0; i < kUnneeded.size(); ++i) {
    if (unneeded[i].tensors > 0) use.not_needed.push_back({kUnneeded[i].purpose, unneeded[i]});
  }
  use.unused_names.assign(names.begin(), names.end());
  if (used.has_all()) report_unused(checkpoint, use, lenient);
  return use;
}

}  // namespace vitrine::model
