// SPDX-License-Identifier: Apache-2.0
// EXL2: {base}.q_weight I32 [words, rows to a multiple of 32], packed along the columns, which
// stand in an order of their own: column c is number q_invperm[c]. q_invperm I32 [cols]; q_groups
// I16 [2 * groups]: the bits of a group and its first line of words; q_scale I32 [groups, rows / 8]
// in nibbles; q_scale_max F16 [groups]. value = scale * (q - 2^(bits-1)), scale = (s + 1)^2 * (max
// / 256), both products rounded to half as exllamav2 rounds them, when it packs and when it runs.
#include <algorithm>
#include <numeric>

#include "module_layout.h"
#include "quant/pack.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

constexpr int64_t kScalesOfWord = 8;
constexpr int64_t kFilledRows = 32;  // rows are filled up to a multiple of these

/// Columns side by side, in the file's order, that have bits and scales in common.
struct Exl2Group {
  int bits = 0;
  int64_t first_word = 0;  ///< its first line of q_weight
  int64_t first = 0;       ///< its first column
  int64_t cols = 0;        ///< how many it has
};

/// The tensors of a module, which are found again wherever rows of it are read.
struct Exl2Parts {
  const TensorInfo* words = nullptr;
  const TensorInfo* groups = nullptr;
  const TensorInfo* order = nullptr;
  int64_t cols() const { return order->shape[0]; }
};

int64_t words_of(int64_t cols, int bits) { return (cols * bits + 31) / 32; }

/// Reads q_groups. Throws kBadFile where it does not say what each column is.
std::vector<Exl2Group> read_exl2_groups(const Checkpoint& checkpoint, const Exl2Parts& parts) {
  constexpr int kWidths[] = {2, 3, 4, 5, 6, 8};
  const TensorInfo& info = *parts.groups;
  const auto stored = read_elements<uint16_t>(checkpoint, info, 0, info.shape[0]);
  const int64_t words = parts.words->shape[0];
  std::vector<Exl2Group> groups;
  const auto refuse = [&](size_t element, const std::string& expected) {
    // Widths have a sign in the file's type, lines are read without one.
    const bool is_width = element % 2 == 0;
    const int found = is_width ? static_cast<int16_t>(stored[element]) : int{stored[element]};
    refuse_element(checkpoint, info, static_cast<int64_t>(element),
                   "is " + std::to_string(found) + "; expected " + expected);
  };
  for (size_t i = 0; i < stored.size(); i += 2) {
    Exl2Group group = {.bits = stored[i], .first_word = stored[i + 1]};
    if (std::ranges::find(kWidths, group.bits) == std::end(kWidths)) {
      refuse(i, "2, 3, 4, 5, 6 or 8 bits");
    }
    if (group.first_word >= words) {
      refuse(i + 1,
             "one of the " + std::to_string(words) + " lines of " + quote_text(parts.words->name));
    }
    if (groups.empty()) {
      if (group.first_word != 0) refuse(i + 1, "0, the first line of the first group");
    } else {
      Exl2Group& last = groups.back();
      if (group.bits > last.bits) {
        refuse(i, "at most the " + std::to_string(last.bits) +
                      " bits of the group before: exllamav2 reads those of more bits first");
      }
      const int64_t lines = group.first_word - last.first_word;
      if (lines <= 0 || lines * 32 % last.bits != 0) {
        refuse(i + 1, "a line behind whole columns of the group before, which begins at " +
                          std::to_string(last.first_word));
      }
      last.cols = lines * 32 / last.bits;
      group.first = last.first + last.cols;
    }
    groups.push_back(group);
  }
  Exl2Group& last = groups.back();
  last.cols = parts.cols() - last.first;
  if (last.cols <= 0 || words_of(last.cols, last.bits) != words - last.first_word) {
    throw_bad_file(file_of(checkpoint, info) + ": tensor " + quote_text(info.name) +
                   " has its last group of " + std::to_string(last.bits) +
                   " bits begin at column " + std::to_string(last.first) + " and line " +
                   std::to_string(last.first_word) + "; expected the rest of the " +
                   std::to_string(parts.cols()) + " columns of " + quote_text(parts.order->name) +
                   " in the rest of the " + std::to_string(words) + " lines of " +
                   quote_text(parts.words->name));
  }
  return groups;
}

/// Reads q_invperm. Throws kBadFile where it is no permutation.
std::vector<int32_t> read_exl2_order(const Checkpoint& checkpoint, const Exl2Parts& parts) {
  const int64_t cols = parts.cols();
  auto order = read_elements<int32_t>(checkpoint, *parts.order, 0, cols);
  std::vector<bool> is_taken(order.size(), false);
  for (int64_t col = 0; col < cols; ++col) {
    const int32_t place = order[static_cast<size_t>(col)];
    const bool is_inside = place >= 0 && place < cols;
    if (is_inside && !is_taken[static_cast<size_t>(place)]) {
      is_taken[static_cast<size_t>(place)] = true;
      continue;
    }
    refuse_element(checkpoint, *parts.order, col,
                   "is " + std::to_string(place) + (is_inside ? " as another is" : "") +
                       "; expected each number below " + std::to_string(cols) + " once");
  }
  return order;
}

/// Returns the most columns that divide all groups but for the last one; 0 of a single group.
int64_t common_columns(const std::vector<Exl2Group>& groups) {
  int64_t common = 0;
  for (const Exl2Group& group : groups) common = std::gcd(common, group.first);
  return common;
}

/// Finds the parts of a module that say what its columns are; nothing where one is missing or has
/// no such shape.
std::optional<Exl2Parts> find_exl2_parts(const Checkpoint& checkpoint, const std::string& base) {
  const Exl2Parts parts = {checkpoint.find(base + ".q_weight"), checkpoint.find(base + ".q_groups"),
                           checkpoint.find(base + ".q_invperm")};
  const auto is_list = [](const TensorInfo* info, DType dtype) {
    return info != nullptr && info->dtype == dtype && info->shape.size() == 1 && info->shape[0] > 0;
  };
  const bool fits = parts.words != nullptr && is_matrix(*parts.words, {DType::kI32}) &&
                    is_list(parts.groups, DType::kI16) && parts.groups->shape[0] % 2 == 0 &&
                    is_list(parts.order, DType::kI32);
  return fits ? std::optional(parts) : std::nullopt;
}

class Exl2Layout final : public ModuleLayout {
 public:
  std::string_view suffix() const override { return ".q_weight"; }
  std::string_view order_name() const override { return "q_invperm"; }
  int64_t row_multiple() const override { return kFilledRows; }

  QuantizedTensors find(const ModulePlace& place) const override {
    const TensorInfo& words = place.numbers;
    const TensorInfo& order_info = place.require(".q_invperm");
    const TensorInfo& groups_info = place.require(".q_groups");
    const TensorInfo& scales = place.require(".q_scale");
    const TensorInfo& scale_max = place.require(".q_scale_max");
    const std::optional<Exl2Parts> parts = find_exl2_parts(place.checkpoint, place.base);
    if (!is_matrix(words, {DType::kI32}) || words.shape[1] % kFilledRows != 0) {
      place.refuse(words, "I32 [words, rows to a multiple of 32]");
    }
    if (order_info.dtype != DType::kI32 || order_info.shape.size() != 1) {
      place.refuse(order_info, "I32 [columns]");
    }
    if (!parts) place.refuse(groups_info, "I16 [2 * groups], bits and first line of each");
    const int64_t rows = words.shape[1], count = groups_info.shape[0] / 2;
    place.check(scales, {DType::kI32}, {count, rows / kScalesOfWord}, groups_info.name);
    place.check(scale_max, {DType::kF16}, {count}, groups_info.name);
    const std::vector<Exl2Group> groups = read_exl2_groups(place.checkpoint, *parts);
    const std::vector<int32_t> order = read_exl2_order(place.checkpoint, *parts);

    QuantizedTensors tensors = place.tensors(rows, parts->cols());
    tensors.scales = &scale_max;
    tensors.others = {&scales, &groups_info, &order_info};
    // exllamav2 makes its own of this one, where an older file has it.
    if (const TensorInfo* other = place.find(".q_perm")) tensors.others.push_back(other);
    tensors.stored_bits = groups.front().bits;  // the most
    int64_t common = common_columns(groups);
    // A gate and an up run in one kernel, in groups of one size.
    if (const std::string partner = partner_of(place.base); !partner.empty()) {
      if (const auto others = find_exl2_parts(place.checkpoint, partner)) {
        common = std::gcd(common, common_columns(read_exl2_groups(place.checkpoint, *others)));
      }
    }
    tensors.stored_group = common == 0 ? tensors.cols : std::min(common, tensors.cols);
    tensors.column_groups = groups_of_columns(order, tensors.stored_group);
    choose_reading(tensors);
    return tensors;
  }

  std::vector<int32_t> read_words(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                  int64_t row_begin, int64_t row_end) const override {
    const Exl2Parts parts = parts_of(tensors);
    const std::vector<Exl2Group> groups = read_exl2_groups(checkpoint, parts);
    const std::vector<int32_t> order = read_exl2_order(checkpoint, parts);
    const std::vector<uint32_t> words =
        read_word_columns(checkpoint, *parts.words, row_begin, row_end);
    const int64_t count = row_end - row_begin, cols = tensors.cols;
    std::vector<uint8_t> stored(static_cast<size_t>(cols));
    std::vector<int8_t> numbers(static_cast<size_t>(count * cols));
    for (int64_t row = 0; row < count; ++row) {
      for (const Exl2Group& group : groups) {
        unpack_numbers(words.data() + group.first_word * count + row, count, 0, group.cols,
                       group.bits, BitPacking::kDense, stored.data() + group.first);
        // What has fewer bits than the matrix has is in its middle.
        const int less = 1 << (group.bits - 1);
        for (int64_t col = group.first; col < group.first + group.cols; ++col) {
          stored[static_cast<size_t>(col)] =
              static_cast<uint8_t>(stored[static_cast<size_t>(col)] - less);
        }
      }
      int8_t* out = numbers.data() + row * cols;
      for (int64_t col = 0; col < cols; ++col) {
        const auto from = static_cast<size_t>(order[static_cast<size_t>(col)]);
        out[col] = static_cast<int8_t>(stored[from]);
      }
    }
    return pack_int32(numbers, count, cols, tensors.bits);
  }

  std::vector<float> read_scales(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                 int64_t row_begin, int64_t row_end) const override {
    const std::vector<Exl2Group> groups = read_exl2_groups(checkpoint, parts_of(tensors));
    std::vector<float> most =
        read_finite(checkpoint, *tensors.scales, 0, static_cast<int64_t>(groups.size()));
    for (float& value : most) value = rounded_to_half(value / 256.0f);
    const int64_t first = row_begin / kScalesOfWord;
    const int64_t end = (row_end + kScalesOfWord - 1) / kScalesOfWord;
    const std::vector<uint32_t> words =
        read_word_columns(checkpoint, *tensors.others[kScales], first, end);
    const int64_t parts = tensors.stored_groups();
    std::vector<float> scales;
    scales.reserve(static_cast<size_t>((row_end - row_begin) * parts));
    for (int64_t row = row_begin; row < row_end; ++row) {
      const int64_t word = row / kScalesOfWord - first;
      size_t group = 0;
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t col = part * tensors.stored_group;
        while (group + 1 < groups.size() && groups[group + 1].first <= col) ++group;
        const uint32_t packed =
            words[static_cast<size_t>(static_cast<int64_t>(group) * (end - first) + word)];
        const uint32_t root = (packed >> (4 * (row % kScalesOfWord)) & 15) + 1;
        scales.push_back(rounded_to_half(static_cast<float>(root * root) * most[group]));
      }
    }
    return scales;
  }

 private:
  enum Other : uint8_t { kScales, kGroups, kOrder };  // of QuantizedTensors::others

  static Exl2Parts parts_of(const QuantizedTensors& tensors) {
    return {tensors.numbers, tensors.others[kGroups], tensors.others[kOrder]};
  }

  static float rounded_to_half(float value) { return f16_to_float(float_to_f16(value)); }

  /// Returns the group of each column; null where those of a group lie side by side, in order.
  static std::shared_ptr<const std::vector<int32_t>> groups_of_columns(
      const std::vector<int32_t>& order, int64_t group) {
    auto groups = std::make_shared<std::vector<int32_t>>();
    groups->reserve(order.size());
    bool is_ordered = true;
    for (const int32_t place : order) {
      const auto col = static_cast<int64_t>(groups->size());
      groups->push_back(static_cast<int32_t>(place / group));
      is_ordered = is_ordered && groups->back() == col / group;
    }
    return is_ordered ? nullptr : std::move(groups);
  }
};

}  // namespace

const ModuleLayout& exl2_layout() {
  static const Exl2Layout layout;
  return layout;
}

}  // namespace vitrine::checkpoint
