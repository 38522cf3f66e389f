// SPDX-License-Identifier: Apache-2.0
#include "model/adapter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "checkpoint/fields.h"
#include "checkpoint/file_io.h"
#include "checkpoint/name_pattern.h"
#include "checkpoint/safetensors_header.h"
#include "core/half_float.h"
#include "core/json_text.h"

namespace vitrine::model {

namespace {

using checkpoint::Fields;
using Json = nlohmann::json;

constexpr uint64_t kMaxConfigBytes = 1 << 20;
constexpr int64_t kMaxRank = 4096;
constexpr float kMaxAdapterScale = 1000;
constexpr std::string_view kPrefix = "base_model.model.";
constexpr std::string_view kSuffixA = ".lora_A.weight", kSuffixB = ".lora_B.weight";

/// Modules as PEFT's configuration has them: a list of whole names or of their last parts, or an
/// expression that all of a name matches.
struct ModuleNames {
  std::set<std::string, std::less<>> names;
  std::optional<checkpoint::NamePattern> pattern;

  bool holds(std::string_view module) const {
    if (pattern) return pattern->matches(module);
    while (!names.contains(module)) {
      const size_t dot = module.find('.');
      if (dot == module.npos) return false;
      module.remove_prefix(dot + 1);
    }
    return true;
  }
};

struct LoraConfig {
  int64_t rank = 0;
  double scale = 0;
  std::optional<ModuleNames> targets;  // none: the tensors say which
  ModuleNames excluded;
  bool is_made_for_folded = false;  // it was trained on the folded model itself
};

[[noreturn]] void bad(const std::string& file, const std::string& what) {
  throw Error(ErrorKind::kBadFile, file + ": " + what);
}

// Fields that change the sum and that nobody here would apply.
void refuse_variants(const Fields& fields) {
  for (const char* name : {"use_dora", "use_qalora", "fan_in_fan_out", "lora_bias"}) {
    if (fields.boolean(name).value_or(false)) {
      fields.unsupported(name, "false: a plain low-rank adapter");
    }
  }
  for (const char* name :
       {"rank_pattern", "alpha_pattern", "modules_to_save", "layers_to_transform", "layers_pattern",
        "layer_replication", "target_parameters", "trainable_token_indices"}) {
    const Json* value = fields.find(name);
    if (value != nullptr && !value->empty()) {
      fields.unsupported(name, "none: one rank for whole target modules");
    }
  }
  const Json* invocation = fields.find("alora_invocation_tokens");
  if (invocation != nullptr && !invocation->empty()) {
    fields.unsupported("alora_invocation_tokens", "none: an adapter that changes every token");
  }
  if (const auto bias = fields.string("bias"); bias.value_or("none") != "none") {
    fields.unsupported("bias", "\"none\"");
  }
}

// None where the file has no such field.
std::optional<ModuleNames> module_names(const Fields& fields, std::string_view name) {
  const Json* value = fields.find(name);
  if (value == nullptr || value->is_null()) return std::nullopt;
  if (value->is_string()) {
    return ModuleNames{
        {},
        checkpoint::NamePattern("re:" + value->get<std::string>(), fields.place(), /*whole=*/true)};
  }
  const std::vector<std::string> names = fields.strings(name);
  return ModuleNames{{names.begin(), names.end()}, std::nullopt};
}

LoraConfig read_config(const std::string& path) {
  const Json json = parse_json_object(read_text_file(path, kMaxConfigBytes), path);
  const Fields fields(json, path);
  if (const auto type = fields.string("peft_type"); type.value_or("") != "LORA") {
    fields.unsupported("peft_type", "\"LORA\"");
  }
  refuse_variants(fields);
  LoraConfig config;
  config.rank = fields.required_integer("r", 1, kMaxRank);
  const auto alpha = fields.number("lora_alpha", -1e6, 1e6);
  if (!alpha) fields.bad("lora_alpha", "a number");
  const auto rank = static_cast<double>(config.rank);
  config.scale = *alpha / (fields.boolean("use_rslora").value_or(false) ? std::sqrt(rank) : rank);
  const Json* targets = fields.find("target_modules");
  if (targets == nullptr || *targets != "all-linear") {
    config.targets = module_names(fields, "target_modules");
  }
  config.is_made_for_folded = fields.boolean(kMadeForFolded).value_or(false);
  config.excluded = module_names(fields, "exclude_modules").value_or(ModuleNames());
  return config;
}

kernels::WeightFormat weight_format(const std::string& path, const TensorInfo& info) {
  switch (info.dtype) {
    case DType::kF32: return kernels::WeightFormat::kF32;
    case DType::kF16: return kernels::WeightFormat::kF16;
    case DType::kBF16: return kernels::WeightFormat::kBF16;
    default:
      throw Error(ErrorKind::kUnsupported, path + ": tensor " + quote_text(info.name) + " is " +
                                               std::string(dtype_name(info.dtype)) +
                                               "; expected F32, F16 or BF16");
  }
}

// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" -> module and which half.
struct TensorPlace {
  std::string module;
  bool is_a = false;
};
TensorPlace place_of(const std::string& path, const std::string& name) {
  for (const std::string_view suffix : {kSuffixA, kSuffixB}) {
    if (name.starts_with(kPrefix) && name.ends_with(suffix) &&
        name.size() > kPrefix.size() + suffix.size()) {
      return {name.substr(kPrefix.size(), name.size() - kPrefix.size() - suffix.size()),
              suffix == kSuffixA};
    }
  }
  throw Error(ErrorKind::kUnsupported,
              path + ": tensor " + quote_text(name) +
                  " is no half of a low-rank pair; expected base_model.model.<module>.lora_A."
                  "weight or .lora_B.weight");
}

std::string shape_text(int64_t rows, int64_t cols) {
  std::string text = "[";
  text += std::to_string(rows) + ", " + std::to_string(cols) + "]";
  return text;
}

// Both files of an adapter, by its folder or by that of its tensors.
struct AdapterFiles {
  std::string config, tensors;
};
AdapterFiles files_of(const std::string& path) {
  if (path.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                "an adapter's path is empty; expected a folder, or its adapter_model.safetensors");
  }
  if (path.ends_with(".gguf")) {
    throw Error(ErrorKind::kUnsupported,
                path +
                    ": adapters are not read from GGUF files; expected the folder that it was "
                    "converted from, with adapter_config.json and adapter_model.safetensors");
  }
  if (!path.ends_with(".safetensors")) {
    return {path + "/adapter_config.json", path + "/adapter_model.safetensors"};
  }
  return {std::filesystem::path(path).replace_filename("adapter_config.json").string(), path};
}

float number_of(const kernels::Weight& weight, int64_t index) {
  if (weight.format == kernels::WeightFormat::kF32) {
    return static_cast<const float*>(weight.data)[index];
  }
  const uint16_t half = static_cast<const uint16_t*>(weight.data)[index];
  return weight.format == kernels::WeightFormat::kF16 ? from_half(half) : from_bfloat16(half);
}

kernels::Weight float_weight(int64_t rows, int64_t cols, bool tiled) {
  kernels::Weight weight;
  weight.format = kernels::WeightFormat::kF32;
  weight.rows = rows;
  weight.cols = cols;
  weight.tiled = tiled;
  return weight;
}

// Puts the values where they become tiles, or else as they are.
void place_rows(kernels::Weight& weight, const std::vector<float>& values, std::byte* data) {
  if (weight.tiled) {
    weight.data = values.data();
    kernels::tile_float_rows(weight, data);
  } else {
    std::memcpy(data, values.data(), values.size() * sizeof(float));
  }
  weight.data = data;
}

// A half as the model's matrix was folded, in float32.
std::vector<float> read_folded(const checkpoint::InputFile& file, const TensorInfo& info,
                               const AdapterFold& fold, bool is_a, kernels::Weight as_stored) {
  std::vector<std::byte> bytes(info.num_bytes);
  file.read(info.file_offset, bytes);
  as_stored.data = bytes.data();
  std::vector<float> values(static_cast<size_t>(as_stored.rows * as_stored.cols));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = number_of(as_stored, static_cast<int64_t>(i));
  }
  fold_half(fold, is_a, as_stored.rows, as_stored.cols, values, file.path());
  return values;
}

// a of all of them, one below the other, and b side by side, each times its scale: b a is the sum.
// `parts` are rows as in files.
ops::LowRankMatrix stack(std::span<const ops::LowRankMatrix* const> parts, bool tiled,
                         WeightMemory& memory) {
  const int64_t cols = parts[0]->a.cols, rows = parts[0]->b.rows;
  int64_t rank = 0;
  for (const ops::LowRankMatrix* part : parts) rank += part->a.rows;
  std::vector<float> a, b(static_cast<size_t>(rows * rank));
  a.reserve(static_cast<size_t>(rank * cols));
  int64_t first = 0;
  for (const ops::LowRankMatrix* part : parts) {
    const int64_t own = part->a.rows;
    for (int64_t i = 0; i < own * cols; ++i) a.push_back(number_of(part->a, i));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < own; ++i) {
        b[static_cast<size_t>(row * rank + first + i)] =
            part->scale * number_of(part->b, row * own + i);
      }
    }
    first += own;
  }
  ops::LowRankMatrix sum{float_weight(rank, cols, tiled), float_weight(rows, rank, tiled), 1};
  place_rows(sum.a, a, memory.allocate(kernels::packed_bytes(sum.a).data, "a sum of adapters"));
  place_rows(sum.b, b, memory.allocate(kernels::packed_bytes(sum.b).data, "a sum of adapters"));
  return sum;
}

}  // namespace

LoraAdapters::LoraAdapters(const std::vector<std::string>& folders,
                           std::span<const std::pair<std::string, float>> sum,
                           const Checkpoint& checkpoint, const ops::Graph& graph, bool tiled)
    : folds_(checkpoint), tiled_(tiled) {
  const std::vector<ops::OpMatrix> targets = ops::adapter_targets(graph);
  std::map<std::string, const ops::OpMatrix*> by_module;
  for (const ops::OpMatrix& target : targets) by_module[target.module] = &target;
  for (const std::string& folder : folders) {
    adapters_.push_back(load(folder, by_module, memory_, tiled_));
  }
  if (!sum.empty()) adapters_.push_back(load_sum(sum, by_module));
  for (const Matrices& matrices : adapters_) count(matrices);
}

void LoraAdapters::count(const Matrices& matrices) {
  for (const auto& [module, matrix] : matrices) {
    for (const kernels::Weight* weight : {&matrix.a, &matrix.b}) {
      num_bytes_ += kernels::packed_bytes(*weight).data;
      num_parameters_ += weight->rows * weight->cols;
    }
  }
}

LoraAdapters::Matrices LoraAdapters::load_sum(std::span<const std::pair<std::string, float>> parts,
                                              const Targets& targets) {
  WeightMemory of_parts;  // of several, which are stacked into the engine's own
  const bool is_one = parts.size() == 1;
  std::vector<Matrices> loaded;
  std::map<std::string, std::vector<const ops::LowRankMatrix*>> by_module;
  for (const auto& [path, scale] : parts) {
    if (!(std::abs(scale) <= kMaxAdapterScale)) {
      throw Error(
          ErrorKind::kInvalidArgument,
          path + ": the adapter's scale is " + std::to_string(scale) + "; expected -1000 to 1000");
    }
    loaded.push_back(load(path, targets, is_one ? memory_ : of_parts, is_one && tiled_));
    for (auto& [module, matrix] : loaded.back()) matrix.scale *= scale;
  }
  if (is_one) return std::move(loaded[0]);
  for (const Matrices& matrices : loaded) {
    for (const auto& [module, matrix] : matrices) by_module[module].push_back(&matrix);
  }
  Matrices sum;
  for (const auto& [module, matrices] : by_module) sum[module] = stack(matrices, tiled_, memory_);
  return sum;
}

LoraAdapters::Matrices LoraAdapters::load(const std::string& adapter, const Targets& targets,
                                          WeightMemory& memory, bool tiled) const {
  const AdapterFiles files = files_of(adapter);
  const LoraConfig config = read_config(files.config);
  const std::string& path = files.tensors;
  const checkpoint::InputFile file(path);
  Matrices matrices;
  std::vector<std::byte> as_in_file;  // where it becomes tiles
  for (const TensorInfo& info : checkpoint::read_safetensors_header(file, 0)) {
    const TensorPlace place = place_of(path, info.name);
    const auto found = targets.find(place.module);
    if (found == targets.end()) {
      throw Error(ErrorKind::kUnsupported,
                  path + ": tensor " + quote_text(info.name) + " targets '" + place.module +
                      "', which adapters cannot change here or the model lacks; expected matrices "
                      "of its attention, dense blocks, experts and routers only");
    }
    const bool is_target = !config.targets || config.targets->holds(place.module);
    if (!is_target || config.excluded.holds(place.module)) {
      bad(path, "tensor " + quote_text(info.name) + " is of a module that adapter_config.json " +
                    (is_target ? "leaves out (exclude_modules)" : "does not target") +
                    "; expected both files of one adapter");
    }
    const ops::OpMatrix* target = found->second;
    const int64_t rows = place.is_a ? config.rank : target->rows;
    const int64_t cols = place.is_a ? target->cols : config.rank;
    if (info.shape != std::vector<int64_t>{rows, cols}) {
      bad(path, "tensor " + quote_text(info.name) + " has the shape " +
                    (info.shape.size() == 2 ? shape_text(info.shape[0], info.shape[1])
                                            : std::to_string(info.shape.size()) + " dimensions") +
                    "; expected " + shape_text(rows, cols) + " for rank " +
                    std::to_string(config.rank) + " and this model");
    }
    ops::LowRankMatrix& matrix = matrices[place.module];
    kernels::Weight& weight = place.is_a ? matrix.a : matrix.b;
    weight.format = weight_format(path, info);
    weight.rows = rows;
    weight.cols = cols;
    const AdapterFold* fold = config.is_made_for_folded ? nullptr : folds_.find(place.module, path);
    if (fold != nullptr) {
      const std::vector<float> folded = read_folded(file, info, *fold, place.is_a, weight);
      weight = float_weight(rows, cols, tiled);
      place_rows(weight, folded, memory.allocate(kernels::packed_bytes(weight).data, path));
      matrix.scale = static_cast<float>(config.scale);
      continue;
    }
    weight.tiled = tiled;
    const uint64_t num_bytes = kernels::packed_bytes(weight).data;
    std::byte* data = memory.allocate(num_bytes, path);
    if (weight.tiled) {
      as_in_file.resize(info.num_bytes);
      file.read(info.file_offset, as_in_file);
      weight.data = as_in_file.data();
      kernels::tile_float_rows(weight, data);
    } else {
      file.read(info.file_offset, {data, info.num_bytes});
    }
    weight.data = data;
    matrix.scale = static_cast<float>(config.scale);
  }
  if (matrices.empty()) bad(path, "holds no tensor; expected pairs of lora_A and lora_B");
  for (const auto& [module, matrix] : matrices) {
    if (matrix.a.data != nullptr && matrix.b.data != nullptr) continue;
    const std::string missing = matrix.a.data == nullptr ? "lora_A" : "lora_B";
    bad(path, "module " + quote_text(module) + " has no " + missing +
                  "; expected both halves of the pair");
  }
  return matrices;
}

const ops::LowRankMatrix* LoraAdapters::find(int32_t adapter, const std::string& module) const {
  const Matrices& matrices = adapters_[static_cast<size_t>(adapter)];
  const auto found = matrices.find(module);
  return found == matrices.end() ? nullptr : &found->second;
}

}  // namespace vitrine::model
