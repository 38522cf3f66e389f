// SPDX-License-Identifier: Apache-2.0
#include "plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "layer_sites.h"
#include "mixed_bits.h"
#include "model/architecture.h"
#include "model/tensor_use.h"
#include "model/weight_use.h"

namespace vitrine::compress {
namespace {

constexpr std::string_view kHeadTensor = "lm_head.weight";
constexpr std::string_view kEmbeddingTensor = "model.embed_tokens.weight";
constexpr std::string_view kUndivided = "the group of ";  // how that obstacle begins

/// Returns true for a matrix that an op multiplies with, or that nothing here knows: the target
/// "Linear" of compressed-tensors would cover its module.
bool looks_linear(const TensorInfo& info, const model::WeightUse* use) {
  if (use == nullptr) return info.shape.size() == 2 && info.name.ends_with(kWeight);
  return use->kind == model::WeightUse::Kind::kProduct ||
         use->kind == model::WeightUse::Kind::kFloatProduct;
}

/// Says why a tensor stays that is no projection.
std::string reason_to_copy(const TensorInfo& info, const model::WeightUse* use,
                           const ModelConfig& config) {
  if (use != nullptr) return std::string(use->purpose);
  const char* purpose = model::purpose_beside_model(info.name, config);
  if (purpose == nullptr) return "the model does not read it";
  return std::string("the model does not read it (") + purpose + ")";
}

bool is_float_type(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

bool is_divided(const TensorInfo& info, int group_size) { return info.shape[1] % group_size == 0; }

/// Why a matrix can't be quantized; empty where it can.
std::string obstacle(const TensorInfo& info, int group_size) {
  if (info.shape.size() != 2) return "not a matrix";
  if (!is_float_type(info.dtype) && info.dtype != DType::kF8E4M3) {
    return "dtype " + std::string(dtype_name(info.dtype));
  }
  if (group_size != 0 && !is_divided(info, group_size)) {
    return std::string(kUndivided) + std::to_string(group_size) + " does not divide its " +
           std::to_string(info.shape[1]) + " columns";
  }
  return "";
}

/// Where most weights would stay as they are, and a smaller group would take more of them, the
/// result is not what was asked for.
void require_best_group(const Checkpoint& checkpoint, const QuantizePlan& plan, int group_size) {
  std::vector<const TensorInfo*> left;
  uint64_t left_bytes = 0, quantized_bytes = 0;
  size_t quantized = 0;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.reason.starts_with(kUndivided)) {
      left.push_back(planned.source);
      left_bytes += planned.source->num_bytes;
    } else if (planned.method != nullptr) {
      ++quantized;
      quantized_bytes += planned.source->num_bytes;
    }
  }
  if (left_bytes <= quantized_bytes) return;
  size_t most = 0;
  int best_size = 0;
  for (const int smaller : {64, 32}) {
    if (smaller >= group_size) continue;
    const auto divided = static_cast<size_t>(std::ranges::count_if(
        left, [smaller](const TensorInfo* info) { return is_divided(*info, smaller); }));
    if (divided <= most) continue;
    most = divided;
    best_size = smaller;
  }
  if (most == 0) return;
  throw Error(ErrorKind::kInvalidArgument,
              checkpoint.path() + ": the group of " + std::to_string(group_size) +
                  " does not divide the columns of " + std::to_string(left.size()) + " of " +
                  std::to_string(left.size() + quantized) + " matrices; expected a group size of " +
                  std::to_string(best_size) + ", which divides those of " +
                  (most == left.size() ? "all" : std::to_string(most) + " of these"));
}

/// Columns that share a scale in the result; 0: all of a row.
int group_size_of(const QuantMethod& method, int asked) {
  if (method.fixed_group == kWholeRow) return 0;
  return method.fixed_group == 0 ? asked : method.fixed_group;
}

/// Returns what the head becomes; null: it stays. Not all engines read two layouts in one folder,
/// so the head's is the others', in eight bits and without demands on what comes to it.
const QuantMethod* head_method_of(const QuantMethod& method) {
  const QuantMethod& int8 = find_quant_method("int8");
  if (method.layout == int8.layout) return &int8;
  const bool fits = method.bits == int8.bits && method.activations == ActivationUse::kFloat;
  return fits ? &method : nullptr;
}

/// Numbers the matrices that are multiplied with the same rows alike, and others by themselves.
void number_families(const Checkpoint& checkpoint, const ModelConfig& config, QuantizePlan& plan) {
  std::unordered_map<std::string, int> family_of;
  int families = 0;
  for (const LayerSites& layer : find_layer_sites(model::build_graph(checkpoint, config))) {
    std::map<std::pair<size_t, int64_t>, int> numbers;
    for (const SiteMatrix& matrix : layer.matrices) {
      const auto [found, is_new] = numbers.try_emplace({matrix.site, matrix.expert}, families);
      families += is_new ? 1 : 0;
      family_of[matrix.module] = found->second;
    }
  }
  for (PlannedTensor& planned : plan.tensors) {
    if (planned.method == nullptr) continue;
    const auto found = family_of.find(planned.module);
    planned.family = found == family_of.end() ? families++ : found->second;
  }
}

/// Returns the scheme that stores the same numbers and has a scale of activations for each token.
const QuantMethod& dynamic_form_of(const QuantMethod& method) {
  for (const QuantMethod& other : quant_methods()) {
    const bool is_alike = other.number_format == method.number_format &&
                          other.bits == method.bits && other.layout == method.layout &&
                          other.symmetric == method.symmetric;
    if (is_alike && other.activations == ActivationUse::kDynamic) {
      return find_quant_method(other.name);
    }
  }
  return method;
}

/// Layers that draft see no text of a calibration, which would find the scale of what comes to
/// them.
void give_unseen_their_own_scales(const Checkpoint& checkpoint, const ModelConfig& config,
                                  QuantizePlan& plan) {
  std::unordered_set<std::string> seen;
  for (const LayerSites& layer : find_layer_sites(model::build_graph(checkpoint, config))) {
    for (const SiteMatrix& matrix : layer.matrices) seen.insert(matrix.module);
  }
  for (PlannedTensor& planned : plan.tensors) {
    if (planned.method == nullptr || seen.contains(planned.module)) continue;
    planned.method = &dynamic_form_of(*planned.method);
  }
}

std::string module_of(std::string_view tensor) {
  return std::string(tensor.substr(0, tensor.size() - kWeight.size()));
}

/// What the values of a matrix of 8-bit floats become.
DType wide_dtype(const Checkpoint& checkpoint) {
  const TensorInfo* embedding = checkpoint.find(kEmbeddingTensor);
  return embedding != nullptr && is_float_type(embedding->dtype) ? embedding->dtype : DType::kBF16;
}

}  // namespace

bool belongs_to_float8(const Checkpoint& checkpoint, std::string_view name) {
  for (const std::string_view suffix : {"_scale", "_scale_inv", ".scale"}) {
    if (!name.ends_with(suffix)) continue;
    const std::string module(name.substr(0, name.rfind('.')));
    const TensorInfo* weight = checkpoint.find(module + ".weight");
    if (weight != nullptr && weight->dtype == DType::kF8E4M3) return true;
  }
  return false;
}

void refuse_integers(const Checkpoint& checkpoint) {
  if (!checkpoint.is_quantized()) return;
  const auto is_float8 = [](const TensorInfo& info) { return info.dtype == DType::kF8E4M3; };
  const auto is_packed = [](const TensorInfo& info) {
    return info.name.ends_with(".weight_packed");
  };
  const auto& tensors = checkpoint.tensors();
  if (std::ranges::any_of(tensors, is_float8) && std::ranges::none_of(tensors, is_packed)) return;
  throw Error(ErrorKind::kInvalidArgument,
              checkpoint.path() +
                  "/config.json: field 'quantization_config' says that the model "
                  "is quantized already; expected a float model, of 8-bit floats too");
}

int thread_count(int asked) {
  if (asked > 0) return asked;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

QuantizePlan plan_quantization(const Checkpoint& checkpoint, const QuantizeOptions& options) {
  refuse_integers(checkpoint);
  const QuantMethod& method = find_quant_method(base_scheme(options.scheme));
  const QuantMethod* head_method = head_method_of(method);
  const std::array kGroupSizes = {32, 64, 128};
  if (std::ranges::find(kGroupSizes, options.group_size) == kGroupSizes.end()) {
    throw Error(ErrorKind::kInvalidArgument, "group size " + std::to_string(options.group_size) +
                                                 " is unknown; expected 32, 64 or 128");
  }
  const ModelConfig config = parse_model_config(checkpoint);
  const bool is_tied = config.tie_word_embeddings;
  const model::WeightUses uses(checkpoint, config);

  QuantizePlan plan;
  bool has_projection = false;
  const DType wide = wide_dtype(checkpoint);
  for (const TensorInfo& info : checkpoint.tensors()) {
    const bool is_head = info.name == kHeadTensor;
    // With tied embeddings the model never reads a head of its own.
    if (is_head && is_tied) continue;
    if (belongs_to_float8(checkpoint, info.name)) continue;
    PlannedTensor planned{&info, "", nullptr, ""};
    planned.dtype = planned.is_widened() ? wide : info.dtype;
    const model::WeightUse* use = uses.find(info.name);
    if (is_head || (use != nullptr && use->kind == model::WeightUse::Kind::kProduct)) {
      planned.module = module_of(info.name);
      planned.reason = obstacle(info, group_size_of(method, options.group_size));
      if (is_head && head_method == nullptr) planned.reason = "output head: the scheme has none";
      if (is_head && !options.quantize_head) planned.reason = "output head kept on request";
    } else {
      planned.reason = reason_to_copy(info, use, config);
    }
    if (planned.reason.empty()) {
      planned.method = is_head ? head_method : &method;
      planned.group_size = group_size_of(*planned.method, options.group_size);
      if (is_head) plan.head_method = planned.method;
      has_projection |= !is_head;
    } else if (looks_linear(info, use)) {
      plan.ignored_modules.push_back(use != nullptr ? use->module : module_of(info.name));
    }
    plan.tensors.push_back(std::move(planned));
  }
  if (is_tied) {
    const TensorInfo& embedding = checkpoint.require(kEmbeddingTensor);
    const int head_group =
        head_method == nullptr ? 0 : group_size_of(*head_method, options.group_size);
    const bool can_quantize =
        options.quantize_head && head_method != nullptr && obstacle(embedding, head_group).empty();
    if (can_quantize) {
      plan.head_method = head_method;
      plan.unties_head = true;
      plan.tensors.push_back(
          {&embedding, module_of(kHeadTensor), head_method, "", wide, head_group});
    } else {
      plan.ignored_modules.push_back(module_of(kHeadTensor));
    }
  }
  require_best_group(checkpoint, plan, options.group_size);
  if (method.quantize_part != nullptr) number_families(checkpoint, config, plan);
  if (method.activations == ActivationUse::kStatic) {
    give_unseen_their_own_scales(checkpoint, config, plan);
  }
  if (!has_projection) {
    throw Error(
        ErrorKind::kInvalidArgument,
        checkpoint.path() + ": no projection can be quantized in groups of " +
            std::to_string(options.group_size) +
            "; expected attention or feed-forward matrices whose columns the group divides");
  }
  std::ranges::sort(plan.ignored_modules);  // both halves of a latent's matrix name it
  plan.ignored_modules.erase(std::unique(plan.ignored_modules.begin(), plan.ignored_modules.end()),
                             plan.ignored_modules.end());
  return plan;
}

}  // namespace vitrine::compress
