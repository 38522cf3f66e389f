// SPDX-License-Identifier: Apache-2.0
#include "gguf_multipliers.h"

#include <algorithm>
#include <cmath>

#include "text.h"
#include "vitrine/quant.h"

namespace vitrine::checkpoint {
namespace {

/// Reads one scale for each matrix of `weight` from the tensor `scale`.
std::vector<float> read_multipliers(const InputFile& file, const TensorInfo& weight,
                                    const TensorInfo& scale) {
  const int64_t count = weight.name.ends_with("_exps.weight") ? weight.shape[0] : 1;
  const std::string place = file.path() + ": tensor " + quote_text(scale.name);
  if (scale.dtype != DType::kF32 || scale.block_format != nullptr ||
      scale.shape != std::vector<int64_t>{count}) {
    throw_bad_file(place + " is " + std::string(scale.storage_name()) + " " +
                   shape_text(scale.shape) + "; expected F32 " + shape_text({count}) +
                   ", a scale for each matrix of " + quote_text(weight.name));
  }
  std::vector<float> values(static_cast<size_t>(count));
  file.read(scale.file_offset, std::as_writable_bytes(std::span(values)));
  const auto bad = std::ranges::find_if(values, [](float value) { return !std::isfinite(value); });
  if (bad != values.end()) {
    throw_bad_file(place + " has the value " + std::to_string(*bad) + " at " +
                   std::to_string(bad - values.begin()) + "; expected finite numbers");
  }
  return values;
}

}  // namespace

Multipliers take_multipliers(const std::vector<InputFile>& files,
                             std::vector<TensorInfo>& tensors) {
  constexpr std::string_view kWeight = ".weight", kScale = ".scale", kInputScale = ".input_scale";
  std::map<std::string, const TensorInfo*, std::less<>> weights;  // in NVFP4, without ".weight"
  for (const TensorInfo& info : tensors) {
    if (info.block_format != nullptr && info.block_format->name == "NVFP4" &&
        info.name.ends_with(kWeight)) {
      weights.emplace(info.name.substr(0, info.name.size() - kWeight.size()), &info);
    }
  }
  if (weights.empty()) return {};
  Multipliers multipliers;
  std::vector<TensorInfo> others;
  for (const TensorInfo& info : tensors) {
    const std::string_view suffix = info.name.ends_with(kInputScale) ? kInputScale : kScale;
    const auto found =
        info.name.ends_with(suffix)
            ? weights.find(std::string_view(info.name).substr(0, info.name.size() - suffix.size()))
            : weights.end();
    if (found == weights.end()) {
      others.push_back(info);
      continue;
    }
    const InputFile& file = files[static_cast<size_t>(info.file_index)];
    std::vector<float> values = read_multipliers(file, *found->second, info);
    if (suffix == kInputScale) continue;
    if (!multipliers.emplace(found->second->name, std::move(values)).second) {
      throw_bad_file(file.path() + ": holds " + quote_text(info.name) + " twice; expected it once");
    }
  }
  tensors = std::move(others);
  return multipliers;
}

}  // namespace vitrine::checkpoint
