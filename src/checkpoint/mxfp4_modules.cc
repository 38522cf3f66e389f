// SPDX-License-Identifier: Apache-2.0
#include "mxfp4_modules.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "stacked_modules.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

constexpr std::string_view kMxfp4Numbers = ".weight_packed", kMxfp4Scales = ".weight_scale";
constexpr int64_t kMxfp4Columns = 32, kMxfp4NumberBytes = kMxfp4Columns / 2;

std::string module_before(const TensorInfo& info, std::string_view suffix) {
  return info.name.substr(0, info.name.size() - suffix.size());
}

/// Returns the module in blocks. Throws kBadFile.
TensorInfo place_mxfp4_module(const TensorInfo& numbers, const TensorInfo* scales,
                              const std::string& module, const std::vector<std::string>& paths) {
  const auto refuse = [&](const TensorInfo& info, const std::string& expected) {
    refuse_tensor(paths[static_cast<size_t>(info.file_index)], info, expected);
  };
  const bool fits = is_matrix(numbers, {DType::kU8}) && numbers.shape[1] % kMxfp4NumberBytes == 0 &&
                    numbers.row_stride == 0;
  if (!fits) refuse(numbers, "U8 [rows, columns / 2] with whole blocks of 32 columns");
  const int64_t rows = numbers.shape[0], blocks = numbers.shape[1] / kMxfp4NumberBytes;
  if (scales == nullptr) {
    throw_bad_file(paths[static_cast<size_t>(numbers.file_index)] + ": the numbers " +
                   quote_text(numbers.name) + " have no scales; expected " +
                   quote_text(module + std::string(kMxfp4Scales)));
  }
  if (scales->dtype != DType::kU8 || scales->shape != std::vector<int64_t>{rows, blocks}) {
    refuse(*scales, "U8 " + shape_text({rows, blocks}) + " from the numbers beside it");
  }
  TensorInfo info;
  info.name = module + ".weight";
  info.fused_from = numbers.fused_from.empty() ? numbers.name : numbers.fused_from;
  place_mxfp4_blocks(numbers, *scales, 0, 1, rows, blocks, info);
  return info;
}

}  // namespace

void place_mxfp4_blocks(const TensorInfo& numbers, const TensorInfo& scales, int64_t first_row,
                        int64_t step, int64_t rows, int64_t blocks, TensorInfo& info) {
  constexpr uint32_t kMxfp4Type = 39;  // ggml's
  info.dtype = DType::kF32;
  info.block_format = find_block_format(kMxfp4Type);
  info.shape = {rows, blocks * kMxfp4Columns};
  info.num_bytes = static_cast<uint64_t>(rows * blocks * kMxfp4Columns) * sizeof(float);
  info.stored_bytes = static_cast<uint64_t>(rows * blocks * (kMxfp4NumberBytes + 1));
  const auto row_scales = std::max(static_cast<uint64_t>(blocks), scales.row_stride);  // bytes
  const auto row_numbers = static_cast<uint64_t>(blocks * kMxfp4NumberBytes);
  info.file_index = numbers.file_index;
  info.file_offset = numbers.file_offset + static_cast<uint64_t>(first_row) * row_numbers;
  info.row_stride = static_cast<uint64_t>(step) * row_numbers;
  info.scale_file_index = scales.file_index;
  info.scale_offset = scales.file_offset + static_cast<uint64_t>(first_row) * row_scales;
  info.scale_row_stride = static_cast<uint64_t>(step) * row_scales;
}

std::vector<TensorInfo> place_mxfp4_modules(std::vector<TensorInfo> tensors,
                                            const QuantizationConfig& config,
                                            const std::vector<std::string>& paths) {
  std::unordered_set<std::string> modules;
  for (const TensorInfo& info : tensors) {
    if (!info.name.ends_with(kMxfp4Numbers)) continue;
    const std::string module = module_before(info, kMxfp4Numbers);
    const auto scheme = find_scheme(config, module, info.fused_from);
    if (scheme && scheme->layout == &mxfp4_layout()) modules.insert(module);
  }
  if (modules.empty()) return tensors;
  std::unordered_map<std::string, TensorInfo> scales;
  for (const TensorInfo& info : tensors) {
    if (info.name.ends_with(kMxfp4Scales)) scales.emplace(module_before(info, kMxfp4Scales), info);
  }
  std::vector<TensorInfo> result;
  result.reserve(tensors.size());
  for (TensorInfo& info : tensors) {
    if (info.name.ends_with(kMxfp4Numbers)) {
      const std::string module = module_before(info, kMxfp4Numbers);
      if (modules.contains(module)) {
        const auto found = scales.find(module);
        result.push_back(place_mxfp4_module(info, found == scales.end() ? nullptr : &found->second,
                                            module, paths));
        continue;
      }
    }
    const bool is_scale =
        info.name.ends_with(kMxfp4Scales) && modules.contains(module_before(info, kMxfp4Scales));
    if (!is_scale) result.push_back(std::move(info));
  }
  return result;
}

}  // namespace vitrine::checkpoint
