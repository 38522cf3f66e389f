// SPDX-License-Identifier: Apache-2.0
#include "fused_experts.h"

#include <optional>
#include <unordered_set>

#include "config_limits.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

/// How a fused tensor's name ends, and what stands for it before ".experts.{e}".
struct FusedLayout {
  std::string_view suffix;
  std::string_view parent;  ///< replaces the suffix
  bool gate_and_up;         ///< rows of the gate projection, then as many of the up projection
};

constexpr FusedLayout kLayouts[] = {
    {".block_sparse_moe.input_linear.weight", ".block_sparse_moe", true},
    {".block_sparse_moe.output_linear.weight", ".block_sparse_moe", false},
    {".mlp.experts.gate_up_proj", ".mlp", true},
    {".mlp.experts.down_proj", ".mlp", false},
};

const FusedLayout* find_layout(const TensorInfo& info) {
  if (info.shape.size() != 3) return nullptr;
  for (const FusedLayout& layout : kLayouts) {
    if (std::string_view(info.name).ends_with(layout.suffix)) return &layout;
  }
  return nullptr;
}

void append_experts(const TensorInfo& fused, const FusedLayout& layout, const std::string& path,
                    std::vector<TensorInfo>& out) {
  const int64_t num_experts = fused.shape[0];
  const int64_t rows = fused.shape[1];
  const int64_t cols = fused.shape[2];
  if (num_experts < 1 || num_experts > kMaxExperts || rows < 1 || cols < 1 ||
      (layout.gate_and_up && rows % 2 != 0)) {
    throw_bad_file(path + ": shape " + shape_text(fused.shape) + " of the fused expert tensor " +
                   quote_text(fused.name) + " is impossible; expected [experts, " +
                   (layout.gate_and_up ? "2 x " : "") + "rows, columns], at most " +
                   std::to_string(kMaxExperts) + " experts");
  }
  const std::string parent =
      fused.name.substr(0, fused.name.size() - layout.suffix.size()) + std::string(layout.parent);
  const uint64_t expert_bytes = fused.num_bytes / static_cast<uint64_t>(num_experts);
  const int parts = layout.gate_and_up ? 2 : 1;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    for (int part = 0; part < parts; ++part) {
      TensorInfo info;
      info.name = parent + ".experts." + std::to_string(expert) +
                  (!layout.gate_and_up ? ".down_proj"
                   : part == 0         ? ".gate_proj"
                                       : ".up_proj") +
                  ".weight";
      info.dtype = fused.dtype;
      info.shape = {rows / parts, cols};
      info.num_bytes = info.stored_bytes = expert_bytes / static_cast<uint64_t>(parts);
      info.file_offset = fused.file_offset + static_cast<uint64_t>(expert) * expert_bytes +
                         static_cast<uint64_t>(part) * info.num_bytes;
      info.file_index = fused.file_index;
      info.fused_from = fused.name;
      out.push_back(std::move(info));
    }
  }
}

}  // namespace

std::vector<TensorInfo> split_fused_experts(std::vector<TensorInfo> tensors,
                                            const std::vector<std::string>& paths) {
  // gpt_oss uses the transformers-5 names for a transposed, interleaved layout, always with biases.
  std::unordered_set<std::string> interleaved;
  for (const TensorInfo& info : tensors) {
    for (std::string_view suffix : {".gate_up_proj_bias", ".down_proj_bias"}) {
      if (std::string_view(info.name).ends_with(suffix)) {
        interleaved.insert(info.name.substr(0, info.name.size() - suffix.size()));
      }
    }
  }
  std::vector<TensorInfo> result;
  result.reserve(tensors.size());
  for (TensorInfo& info : tensors) {
    const FusedLayout* layout = find_layout(info);
    if (layout != nullptr && interleaved.contains(info.name.substr(0, info.name.rfind('.')))) {
      layout = nullptr;
    }
    if (layout == nullptr) {
      result.push_back(std::move(info));
    } else {
      append_experts(info, *layout, paths[static_cast<size_t>(info.file_index)], result);
    }
  }
  return result;
}

}  // namespace vitrine::checkpoint
