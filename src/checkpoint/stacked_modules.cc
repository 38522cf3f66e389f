// SPDX-License-Identifier: Apache-2.0
#include "stacked_modules.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>

#include "config_limits.h"
#include "stack_names.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

bool is_float_type(DType dtype) {
  return std::ranges::find(kFloatTypes, dtype) != kFloatTypes.end();
}

/// Returns a whole tensor's elements: its header has checked that they lie in the file.
int64_t count_of(const TensorInfo& info) {
  return static_cast<int64_t>(info.num_bytes / dtype_size(info.dtype));
}

/// One stack: its tensors, and the modules that they become.
class StackSplitter {
 public:
  using Member = std::pair<const StackPart*, const TensorInfo*>;

  StackSplitter(const std::string& stem, const FusedLayout& layout, std::vector<Member> members,
                std::span<const InputFile> files)
      : layout_(layout), members_(std::move(members)), files_(files), stem_(stem) {
    for (const auto& [part, info] : members_) {
      if (part->role != StackRole::kNumbers) continue;
      if (numbers_ != nullptr) {
        throw_bad_file(path_of(*info) + ": holds both " + quote_text(numbers_->name) + " and " +
                       quote_text(info->name) + "; expected one of them");
      }
      numbers_ = info;
    }
  }

  bool has_numbers() const { return numbers_ != nullptr; }

  /// Refuses floats: llm-compressor's repack_moe writes weights beside scales in one way, be they
  /// the weights or the numbers that the scales multiply.
  void refuse_floats() const {
    if (!is_float_type(numbers_->dtype)) return;
    const auto scales = std::ranges::find_if(members_, [](const Member& member) {
      return member.first->role != StackRole::kNumbers &&
             member.first->role != StackRole::kActivations;
    });
    throw_unsupported(
        path_of(*numbers_) + ": tensor " + quote_text(numbers_->name) + " is " +
        std::string(dtype_name(numbers_->dtype)) + ", and " + quote_text(scales->second->name) +
        " beside it says that it is quantized, so that its numbers may or may not be the weights; "
        "expected quantized numbers (llm-compressor: save without repack_moe)");
  }
  /// Refuses the biases of quantized experts.
  [[noreturn]] void refuse_bias(const TensorInfo& bias) const {
    throw_unsupported(path_of(bias) + ": tensor " + quote_text(bias.name) +
                      " stands beside quantized experts in one tensor, whose rows may take turns "
                      "then; expected such experts one by one, or without biases");
  }

  /// Appends the tensors of all modules.
  void split(const QuantizationConfig* config, StackedModules& to) {
    check_numbers();
    if (config != nullptr) {
      scheme_ = find_scheme(*config, expert_module(stem_, layout_, 0, 0), numbers_->name);
    }
    if (!scheme_) {
      throw_bad_file(path_of(*numbers_) + ": tensor " + quote_text(numbers_->name) + " is " +
                     std::string(dtype_name(numbers_->dtype)) + ", but " +
                     (config == nullptr ? "there is no quantization_config"
                                        : "quantization_config leaves the module out") +
                     "; expected a group that targets " +
                     quote_text(expert_module(stem_, layout_, 0, 0)));
    }
    for (const auto& [part, info] : members_) {
      if (part->role == StackRole::kShape) read_shape(*info);
    }
    if (columns_ > 0) to.columns[numbers_->name] = columns_;
    for (const auto& [part, info] : members_) {
      if (part->role == StackRole::kShape) continue;
      if (part->role == StackRole::kActivations) {
        to.tensors.push_back(*info);
        to.tensors.back().name = stem_ + std::string(part->suffix);
        to.tensors.back().fused_from = info->name;
        continue;
      }
      for (int64_t expert = 0; expert < experts_; ++expert) {
        for (int half = 0; half < halves_; ++half) {
          TensorInfo view = view_of(*part, *info, expert, half);
          view.name = expert_module(stem_, layout_, expert, half) + std::string(part->suffix);
          to.tensors.push_back(std::move(view));
        }
      }
    }
  }

 private:
  const std::string& path_of(const TensorInfo& info) const {
    return files_[static_cast<size_t>(info.file_index)].path();
  }

  [[noreturn]] void refuse(const TensorInfo& info, const std::string& expected) const {
    refuse_tensor(path_of(info), info, expected);
  }

  void check_numbers() {
    halves_ = layout_.gate_and_up ? 2 : 1;
    const std::vector<int64_t>& shape = numbers_->shape;
    const bool is_known = numbers_->dtype == DType::kF8E4M3 || numbers_->dtype == DType::kI8 ||
                          numbers_->dtype == DType::kU8 || numbers_->dtype == DType::kI32;
    bool fits = is_known && shape.size() == 3 && shape[0] <= kMaxExperts;
    for (const int64_t extent : shape) fits = fits && extent >= 1;
    if (!fits || shape[1] % halves_ != 0) {
      refuse(*numbers_, "quantized experts F8_E4M3, I8, U8 or I32 [experts, " +
                            std::string(halves_ == 2 ? "2 x " : "") + "rows, columns], at most " +
                            std::to_string(kMaxExperts) + " experts");
    }
    experts_ = shape[0];
    rows_ = shape[1] / halves_;
  }

  /// Refuses a tensor of another number of experts.
  void check_experts(const TensorInfo& info) const {
    if (!info.shape.empty() && info.shape[0] == experts_) return;
    refuse(info, "one for each of the " + std::to_string(experts_) + " experts of " +
                     quote_text(numbers_->name));
  }

  /// Reads the columns from rows and columns of a matrix, of gate and up, or of the whole stack;
  /// one pair, or one for each expert.
  void read_shape(const TensorInfo& info) {
    const int64_t count = count_of(info);
    const bool is_wide = info.dtype == DType::kI64;
    const bool is_stack = info.shape == std::vector<int64_t>{3};
    const bool is_one = info.shape == std::vector<int64_t>{2};
    const bool has_each = info.shape.size() == 2 && info.shape[0] == experts_ &&
                          (info.shape[1] == 2 || info.shape[1] == 2 * halves_);
    if ((!is_wide && info.dtype != DType::kI32) || !(is_stack || is_one || has_each)) {
      refuse(info, "I64 [experts, 2], rows and columns of each");
    }
    std::vector<std::byte> bytes(static_cast<size_t>(info.num_bytes));
    files_[static_cast<size_t>(info.file_index)].read(info.file_offset, bytes);
    std::vector<int64_t> extents(static_cast<size_t>(count));
    for (size_t i = 0; i < extents.size(); ++i) {
      int32_t narrow = 0;
      if (is_wide) {
        std::memcpy(&extents[i], &bytes[i * sizeof(int64_t)], sizeof(int64_t));
      } else {
        std::memcpy(&narrow, &bytes[i * sizeof(int32_t)], sizeof(int32_t));
        extents[i] = narrow;
      }
    }
    if (is_stack && extents[0] == experts_) extents.erase(extents.begin());
    constexpr int64_t kMostColumns = int64_t{1} << 30;
    columns_ = extents.back();
    bool fits = columns_ >= 1 && columns_ <= kMostColumns && extents.size() % 2 == 0;
    for (size_t i = 0; fits && i < extents.size(); i += 2) {
      const bool has_rows = extents[i] == rows_ || extents[i] == rows_ * halves_;
      fits = has_rows && extents[i + 1] == columns_;
    }
    if (!fits) {
      throw_bad_file(path_of(info) + ": tensor " + quote_text(info.name) +
                     " holds other extents than " + quote_text(numbers_->name) + "; expected " +
                     std::to_string(rows_ * halves_) +
                     " rows, and as many columns for each expert");
    }
  }

  TensorInfo view_of(const StackPart& part, const TensorInfo& info, int64_t expert,
                     int half) const {
    switch (part.role) {
      case StackRole::kScales: return scales_of(info, expert, half);
      case StackRole::kZeroPoints:
        return info.dtype == DType::kI32 ? packed_zero_points_of(info, expert, half)
                                         : scales_of(info, expert, half);
      case StackRole::kFactor: return factor_of(info, expert, half);
      case StackRole::kOrder: return order_of(info, expert, half);
      default: return rows_of(info, expert, half, {rows_, info.shape[2]});
    }
  }

  /// Returns `shape` elements that begin so many behind the tensor's first.
  static TensorInfo elements_of(const TensorInfo& info, int64_t first, std::vector<int64_t> shape) {
    const uint64_t size = dtype_size(info.dtype);
    TensorInfo view;
    view.dtype = info.dtype;
    view.file_index = info.file_index;
    view.file_offset = info.file_offset + static_cast<uint64_t>(first) * size;
    view.shape = std::move(shape);
    view.num_bytes = size;
    for (const int64_t extent : view.shape) view.num_bytes *= static_cast<uint64_t>(extent);
    view.stored_bytes = view.num_bytes;
    view.fused_from = info.name;
    return view;
  }

  /// Returns the half of an expert's rows, which stand one behind the other.
  TensorInfo rows_of(const TensorInfo& info, int64_t expert, int half,
                     std::vector<int64_t> shape) const {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return elements_of(info, (expert * halves_ + half) * count, std::move(shape));
  }

  /// Returns the half of each of an expert's rows: llm-compressor's repack_moe joins the last axis.
  TensorInfo columns_of(const TensorInfo& info, int64_t expert, int half) const {
    const int64_t rows = info.shape[1], width = info.shape[2], cols = width / halves_;
    const uint64_t size = dtype_size(info.dtype);
    TensorInfo view = elements_of(info, expert * rows * width + half * cols, {rows, cols});
    view.row_stride = static_cast<uint64_t>(width) * size;
    view.col_stride = size;
    return view;
  }

  /// Returns the shape of a tensor with one number, as the layouts expect it.
  std::vector<int64_t> shape_of_one() const {
    if (numbers_->dtype == DType::kF8E4M3) return {1, 1};
    return {1};
  }

  /// Refuses a part of the stack whose `units` may hold rows of the gate and of up.
  [[noreturn]] void refuse_shared(const TensorInfo& info, const std::string& units) const {
    throw_unsupported(path_of(info) + ": tensor " + quote_text(info.name) + " stands for " + units +
                      " each, and the first " + std::to_string(rows_) + " rows of " +
                      quote_text(numbers_->name) +
                      " are the gate; expected whole ones of gate and of up");
  }

  TensorInfo scales_of(const TensorInfo& info, int64_t expert, int half) const {
    if (count_of(info) == 1) return elements_of(info, 0, shape_of_one());
    check_experts(info);
    const int64_t each = count_of(info) / experts_;
    if (info.shape.size() > 3) refuse(info, "[experts, rows, groups]");
    if (each == 1) return elements_of(info, expert, shape_of_one());
    const int64_t high = info.shape[1], wide = info.shape.size() == 3 ? info.shape[2] : 1;
    const bool is_flat = info.shape.size() == 2;
    if (halves_ == 1) {
      return rows_of(info, expert, 0,
                     is_flat ? std::vector<int64_t>{high} : std::vector<int64_t>{high, wide});
    }
    const int64_t block = scheme_->block_rows;  // 0: one block
    const auto blocks = [&](int64_t rows) { return block == 0 ? 1 : (rows + block - 1) / block; };
    const int64_t of_half = blocks(rows_), of_both = blocks(2 * rows_);
    const int64_t group = scheme_->group_size;
    const bool is_of_both = high == of_both && numbers_->dtype == DType::kF8E4M3 &&
                            (group == 0 ? wide == 1 : wide == (numbers_->shape[2] - 1) / group + 1);
    // Scales of gate and of up may be as many as those of blocks that reach from one into the
    // other.
    if (is_of_both && block > 0 && of_both == 2 * of_half && rows_ % block != 0) {
      refuse_shared(info, std::to_string(block) + " rows");
    }
    if (high == 2 * of_half) {
      if (is_flat) return rows_of(info, expert, half, {of_half});
      if (of_half * wide == 1) return rows_of(info, expert, half, shape_of_one());
      return rows_of(info, expert, half, {of_half, wide});
    }
    if (is_of_both && of_both == 1) return elements_of(info, expert * wide, {1, wide});
    if (!is_flat && high == of_half && wide % 2 == 0) return columns_of(info, expert, half);
    if (is_of_both) refuse_shared(info, std::to_string(block) + " rows");
    refuse(info, "[experts, " + std::to_string(2 * of_half) + ", groups], or gate and up side by " +
                     "side [experts, " + std::to_string(of_half) + ", 2 x groups], from " +
                     quote_text(numbers_->name));
  }

  /// Zero points are packed along the rows.
  TensorInfo packed_zero_points_of(const TensorInfo& info, int64_t expert, int half) const {
    check_experts(info);
    if (info.shape.size() != 3) refuse(info, "I32 [experts, words, groups]");
    const int64_t high = info.shape[1], wide = info.shape[2];
    if (halves_ == 1) return rows_of(info, expert, 0, {high, wide});
    const int bits = scheme_->bits;
    for (const BitPacking packing : {BitPacking::kDense, BitPacking::kPadded}) {
      const int64_t words = packed_word_count(rows_, bits, packing);
      const bool is_of_both = high == packed_word_count(2 * rows_, bits, packing);
      const bool has_whole_words =
          packing == BitPacking::kPadded ? rows_ % (32 / bits) == 0 : rows_ * bits % 32 == 0;
      if (is_of_both && !has_whole_words) refuse_shared(info, "words of 32 bits");
      if (high == 2 * words) return rows_of(info, expert, half, {words, wide});
      if (high == words && wide % 2 == 0) return columns_of(info, expert, half);
    }
    refuse(info, "whole words for the " + std::to_string(rows_) + " rows of the gate, and of up");
  }

  TensorInfo factor_of(const TensorInfo& info, int64_t expert, int half) const {
    if (count_of(info) == 1) return elements_of(info, 0, {1});
    check_experts(info);
    const int64_t each = count_of(info) / experts_;
    if (each == 1) return elements_of(info, expert, {1});
    if (each == halves_) return elements_of(info, expert * halves_ + half, {1});
    refuse(info, halves_ == 2 ? "[experts], or [experts, 2] of gate and up" : "[experts]");
  }

  TensorInfo order_of(const TensorInfo& info, int64_t expert, int half) const {
    check_experts(info);
    const int64_t each = count_of(info) / experts_;
    if (halves_ == 2 && each == 2 * columns_) return rows_of(info, expert, half, {columns_});
    return elements_of(info, expert * each, {each});
  }

  const FusedLayout& layout_;
  std::vector<Member> members_;
  std::span<const InputFile> files_;
  std::string stem_;
  const TensorInfo* numbers_ = nullptr;
  std::optional<QuantizedModule> scheme_;
  int64_t experts_ = 0, rows_ = 0;  // rows of a module
  int64_t columns_ = 0;             // 0: no tensor says them
  int halves_ = 1;
};

}  // namespace

std::optional<QuantizedModule> find_scheme(const QuantizationConfig& config,
                                           std::string_view module, std::string_view fused_from) {
  if (auto found = config.find(module)) return found;
  const std::optional<StackName> stack = stack_name(fused_from);
  return stack ? config.find(stack->stem) : std::nullopt;
}

StackedModules split_stacked_modules(std::vector<TensorInfo> tensors,
                                     const QuantizationConfig* config,
                                     std::span<const InputFile> files) {
  struct Stack {
    const FusedLayout* layout = nullptr;
    std::vector<StackSplitter::Member> members;
    bool is_quantized = false;  // a tensor says so
    const TensorInfo* bias = nullptr;
  };
  std::map<std::string, Stack, std::less<>> stacks;
  for (const TensorInfo& info : tensors) {
    const std::optional<StackName> found = stack_name(info.name);
    if (!found) continue;
    Stack& stack = stacks[found->stem];
    stack.layout = found->layout;
    stack.members.emplace_back(found->part, &info);
    const StackRole role = found->part->role;
    if (role == StackRole::kNumbers ? !is_float_type(info.dtype)
                                    : role != StackRole::kActivations) {
      stack.is_quantized = true;
    }
  }
  std::erase_if(stacks, [](const auto& stack) { return !stack.second.is_quantized; });
  StackedModules result;
  if (stacks.empty()) {
    result.tensors = std::move(tensors);
    return result;
  }
  for (const TensorInfo& info : tensors) {
    const std::string_view name = info.name;
    if (!name.ends_with("_bias") && !name.ends_with(".bias")) continue;
    const auto found = stacks.find(name.substr(0, name.size() - std::string_view("_bias").size()));
    if (found != stacks.end()) found->second.bias = &info;
  }
  std::vector<bool> is_taken(tensors.size(), false);
  for (auto& [stem, stack] : stacks) {
    StackSplitter splitter(stem, *stack.layout, stack.members, files);
    if (!splitter.has_numbers()) continue;  // a load names what nothing asks for
    splitter.refuse_floats();
    if (stack.bias != nullptr) splitter.refuse_bias(*stack.bias);
    for (const auto& [part, info] : stack.members) {
      is_taken[static_cast<size_t>(info - tensors.data())] = true;
    }
    splitter.split(config, result);
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!is_taken[i]) result.tensors.push_back(std::move(tensors[i]));
  }
  return result;
}

}  // namespace vitrine::checkpoint
