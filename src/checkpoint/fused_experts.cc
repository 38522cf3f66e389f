// SPDX-License-Identifier: Apache-2.0
#include "fused_experts.h"

#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "config_limits.h"
#include "mxfp4_modules.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

constexpr FusedLayout kFusedLayouts[] = {
    {".block_sparse_moe.input_linear.weight", ".block_sparse_moe", true},
    {".block_sparse_moe.output_linear.weight", ".block_sparse_moe", false},
    {".mlp.experts.gate_up_proj", ".mlp", true},
    {".mlp.experts.down_proj", ".mlp", false},
    {".feed_forward.experts.gate_up_proj", ".feed_forward", true, true},
    {".feed_forward.experts.down_proj", ".feed_forward", false, true},
    {".experts.gate_up_proj", "", true},  // gemma4
    {".experts.down_proj", "", false},
};

const FusedLayout* find_layout(const TensorInfo& info) {
  if (info.shape.size() != 3) return nullptr;
  for (const FusedLayout& layout : kFusedLayouts) {
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
  const uint64_t expert_bytes = fused.num_bytes / static_cast<uint64_t>(num_experts);
  const int parts = layout.gate_and_up ? 2 : 1;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    for (int part = 0; part < parts; ++part) {
      TensorInfo info;
      info.name = expert_module(fused.name, layout, expert, part) + ".weight";
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

/// How a tensor's name ends, and what it is.
struct GptOssPart {
  std::string_view suffix;
  size_t dims;
  int turns;  // 2: gate and up
  bool is_blocks = false, is_scales = false;
};
constexpr GptOssPart kGptOssParts[] = {
    {".gate_up_proj", 3, 2},
    {".down_proj", 3, 1},
    {".gate_up_proj_bias", 2, 2},
    {".down_proj_bias", 2, 1},
    {".gate_up_proj_blocks", 4, 2, true},
    {".down_proj_blocks", 4, 1, true},
    {".gate_up_proj_scales", 3, 2, false, true},
    {".down_proj_scales", 3, 1, false, true},
};

/// gpt_oss: gate and up take turns, matrices of floats stand transposed, biases beside them.
class GptOssExperts {
 public:
  GptOssExperts(const std::vector<std::string>& paths, std::vector<TensorInfo>& out)
      : paths_(paths), out_(out) {}

  /// False for a tensor that is none of these. `scales`: those of a tensor of blocks, or null.
  bool append(const TensorInfo& fused, const TensorInfo* scales) {
    for (const GptOssPart& part : kGptOssParts) {
      if (!std::string_view(fused.name).ends_with(part.suffix)) continue;
      prefix_ = fused.name.substr(0, fused.name.size() - part.suffix.size());
      if (part.is_scales) return true;  // read with their blocks
      require(fused, part.dims);
      for (int64_t expert = 0; expert < fused.shape[0]; ++expert) {
        for (int turn = 0; turn < part.turns; ++turn) {
          TensorInfo info = part_of(fused, expert,
                                    part.turns == 1 ? "down"
                                    : turn == 0     ? "gate"
                                                    : "up");
          if (part.is_blocks) {
            place_blocks(fused, scales, expert, turn, part.turns, info);
          } else if (part.dims == 3) {
            place_matrix(fused, expert, turn, part.turns, info);
          } else {
            place_bias(fused, expert, turn, part.turns, info);
          }
          out_.push_back(std::move(info));
        }
      }
      return true;
    }
    return false;
  }

 private:
  static constexpr int64_t kBlockBytes = 16;

  [[noreturn]] void refuse(const TensorInfo& fused, const std::string& expected) const {
    throw_bad_file(paths_[static_cast<size_t>(fused.file_index)] + ": shape " +
                   shape_text(fused.shape) + " and type " + std::string(dtype_name(fused.dtype)) +
                   " of the fused expert tensor " + quote_text(fused.name) +
                   " are impossible; expected " + expected);
  }

  void require(const TensorInfo& fused, size_t dims) const {
    bool fits = fused.shape.size() == dims && fused.shape[0] <= kMaxExperts;
    for (const int64_t extent : fused.shape) fits = fits && extent >= 1;
    if (!fits) refuse(fused, std::to_string(dims) + " extents, the first one the experts");
  }

  TensorInfo part_of(const TensorInfo& fused, int64_t expert, const std::string& role) const {
    TensorInfo info;
    info.name = prefix_ + "." + std::to_string(expert) + "." + role + "_proj.";
    info.dtype = fused.dtype;
    info.file_index = fused.file_index;
    info.fused_from = fused.name;
    return info;
  }

  void place_matrix(const TensorInfo& fused, int64_t expert, int turn, int turns,
                    TensorInfo& info) const {
    const int64_t in = fused.shape[1], out = fused.shape[2];
    if (out % turns != 0) refuse(fused, "[experts, columns, 2 x rows]");
    const uint64_t size = dtype_size(fused.dtype);
    const uint64_t expert_bytes = fused.num_bytes / static_cast<uint64_t>(fused.shape[0]);
    info.name += "weight";
    info.shape = {out / turns, in};
    info.num_bytes = info.stored_bytes = expert_bytes / static_cast<uint64_t>(turns);
    info.file_offset = fused.file_offset + static_cast<uint64_t>(expert) * expert_bytes +
                       static_cast<uint64_t>(turn) * size;
    info.row_stride = static_cast<uint64_t>(turns) * size;
    info.col_stride = static_cast<uint64_t>(out) * size;
  }

  void place_bias(const TensorInfo& fused, int64_t expert, int turn, int turns,
                  TensorInfo& info) const {
    const int64_t rows = fused.shape[1];
    if (rows % turns != 0) refuse(fused, "[experts, 2 x rows]");
    const uint64_t size = dtype_size(fused.dtype);
    info.name += "bias";
    info.shape = {rows / turns};
    info.num_bytes = info.stored_bytes = static_cast<uint64_t>(rows / turns) * size;
    info.file_offset = fused.file_offset +
                       (static_cast<uint64_t>(expert * rows) + static_cast<uint64_t>(turn)) * size;
    if (turns > 1) info.row_stride = static_cast<uint64_t>(turns) * size;
  }

  void place_blocks(const TensorInfo& fused, const TensorInfo* scales, int64_t expert, int turn,
                    int turns, TensorInfo& info) const {
    const int64_t rows = fused.shape[1], blocks = fused.shape[2];
    if (fused.dtype != DType::kU8 || fused.shape[3] != kBlockBytes || rows % turns != 0) {
      refuse(fused, "U8 [experts, rows, columns / 32, 16]");
    }
    if (scales == nullptr) {
      throw_bad_file(paths_[static_cast<size_t>(fused.file_index)] + ": the blocks " +
                     quote_text(fused.name) +
                     " have no scales; expected a tensor whose name ends with _scales");
    }
    if (scales->dtype != DType::kU8 ||
        scales->shape != std::vector<int64_t>{fused.shape[0], rows, blocks}) {
      refuse(*scales, "U8 " + shape_text({fused.shape[0], rows, blocks}) + ", as its blocks");
    }
    info.name += "weight";
    place_mxfp4_blocks(fused, *scales, expert * rows + turn, turns, rows / turns, blocks, info);
  }

  const std::vector<std::string>& paths_;
  std::vector<TensorInfo>& out_;
  std::string prefix_;  // "model.layers.0.mlp.experts"
};

}  // namespace

std::span<const FusedLayout> fused_layouts() { return kFusedLayouts; }

std::string expert_module(std::string_view fused, const FusedLayout& layout, int64_t expert,
                          int half) {
  constexpr std::string_view kWeight = ".weight";
  std::string_view suffix = layout.suffix;
  if (suffix.ends_with(kWeight) && !fused.ends_with(kWeight)) suffix.remove_suffix(kWeight.size());
  const char* const role = !layout.gate_and_up ? (layout.has_numbers ? ".w2" : ".down_proj")
                           : half == 0         ? (layout.has_numbers ? ".w1" : ".gate_proj")
                                               : (layout.has_numbers ? ".w3" : ".up_proj");
  return std::string(fused.substr(0, fused.size() - suffix.size())) + std::string(layout.parent) +
         ".experts." + std::to_string(expert) + role;
}

std::vector<TensorInfo> split_fused_experts(std::vector<TensorInfo> tensors,
                                            const std::vector<std::string>& paths) {
  // gpt_oss uses the transformers-5 names for another layout, always with biases.
  std::unordered_set<std::string> interleaved;
  std::unordered_map<std::string, TensorInfo> scales;  // by the name of their blocks
  for (const TensorInfo& info : tensors) {
    for (std::string_view suffix : {".gate_up_proj_bias", ".down_proj_bias"}) {
      if (std::string_view(info.name).ends_with(suffix)) {
        interleaved.insert(info.name.substr(0, info.name.size() - suffix.size()));
      }
    }
    constexpr std::string_view kScales = "_scales";
    if (std::string_view(info.name).ends_with(kScales)) {
      scales[info.name.substr(0, info.name.size() - kScales.size()) + "_blocks"] = info;
    }
  }
  std::vector<TensorInfo> result;
  result.reserve(tensors.size());
  GptOssExperts gpt_oss(paths, result);
  for (TensorInfo& info : tensors) {
    const size_t point = info.name.rfind('.');
    if (point != std::string::npos && interleaved.contains(info.name.substr(0, point))) {
      const auto found = scales.find(info.name);
      if (gpt_oss.append(info, found == scales.end() ? nullptr : &found->second)) continue;
    }
    if (const FusedLayout* layout = find_layout(info)) {
      append_experts(info, *layout, paths[static_cast<size_t>(info.file_index)], result);
    } else {
      result.push_back(std::move(info));
    }
  }
  return result;
}

}  // namespace vitrine::checkpoint
