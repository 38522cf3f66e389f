// SPDX-License-Identifier: Apache-2.0
#include "input_scale.h"

#include <algorithm>
#include <cmath>

#include "module_layout.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

float read_positive(const Checkpoint& checkpoint, const TensorInfo& info) {
  const bool is_one = std::ranges::all_of(info.shape, [](int64_t extent) { return extent == 1; });
  if (!is_one || std::ranges::find(kFloatTypes, info.dtype) == kFloatTypes.end()) {
    refuse_tensor(file_of(checkpoint, info), info,
                  "F32, F16 or BF16 [1], the scale of all activations");
  }
  const float scale = read_finite(checkpoint, info, 0, 1).front();
  if (!(scale > 0.0f) || !std::isfinite(1.0f / scale)) {
    refuse_element(checkpoint, info, 0,
                   "is " + nlohmann::json(scale).dump() +
                       "; expected a positive number, or a config without input_activations");
  }
  return scale;
}

}  // namespace

ActivationUse read_activation_use(const Fields& activations, const QuantizedModule& scheme) {
  const nlohmann::json* dynamic = activations.find("dynamic");
  const bool is_dynamic = dynamic != nullptr && *dynamic == true;
  const bool is_static = dynamic == nullptr || *dynamic == false;
  const std::string strategy = activations.string("strategy").value_or("tensor");
  const bool is_int8 = activations.integer("num_bits", 1, 64).value_or(8) == 8 &&
                       activations.string("type").value_or("int") == "int" &&
                       activations.boolean("symmetric").value_or(true);
  const bool is_integer = scheme.format == "pack-quantized" || scheme.format == "int-quantized";
  if (!is_integer || !is_int8) return ActivationUse::kFloat;
  if (is_dynamic && strategy == "token") return ActivationUse::kDynamic;
  if (is_static && strategy == "tensor") return ActivationUse::kStatic;
  return ActivationUse::kFloat;
}

void read_input_scale(const Checkpoint& checkpoint, const std::string& base, ActivationUse use,
                      QuantizedTensors& tensors) {
  const bool is_integer = tensors.number_format == NumberFormat::kInteger && !tensors.floats &&
                          tensors.blocks == nullptr;
  if (use == ActivationUse::kFloat || !is_integer || tensors.column_groups != nullptr) return;
  if (use == ActivationUse::kStatic) {
    const TensorInfo* scale = checkpoint.find(base + ".input_scale");
    if (scale == nullptr) {
      if (!tensors.numbers->fused_from.empty()) return;
      throw_bad_file(file_of(checkpoint, *tensors.numbers) + ": tensor " +
                     quote_text(base + ".input_scale") +
                     " is missing; expected it, since quantization_config has input_activations "
                     "that are not dynamic, or a config without these");
    }
    tensors.input_scale = read_positive(checkpoint, *scale);
    tensors.others.push_back(scale);
  }
  tensors.activations = use;
}

void match_input_scales(QuantizedTensors& tensors, const std::optional<QuantizedTensors>& partner) {
  if (tensors.activations == ActivationUse::kFloat) return;
  const bool fits = partner && partner->activations == tensors.activations;
  if (!fits) tensors.activations = ActivationUse::kFloat;
  tensors.input_scale = fits ? std::max(tensors.input_scale, partner->input_scale) : 0.0f;
}

}  // namespace vitrine::checkpoint
