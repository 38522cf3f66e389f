// SPDX-License-Identifier: Apache-2.0
// NVFP4: E2M1 numbers, two a byte (the even column low), an E4M3 scale for 16 columns and one
// factor for the matrix. compressed-tensors: {base}.weight_packed, .weight_scale and
// .weight_global_scale, which divides the scales. ModelOpt: {base}.weight, .weight_scale and
// .weight_scale_2, which multiplies them.
//
// Rows are floats, rounded to bfloat16 as both writers' own dequantization rounds them; or blocks
// of GGUF's type of that name, where 64 divides the columns, times what multiplies the scales.
#include <algorithm>
#include <cmath>

#include "module_layout.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

constexpr int64_t kNvfp4Columns = 16;  // that share a scale
constexpr uint32_t kNvfp4Type = 40;    // ggml's
constexpr size_t kBlockGroups = 4;     // of a block
constexpr uint8_t kWithoutSign = 0x7f, kNan = 0x7f;
constexpr int kNumberSign = 8;  // of E2M1
constexpr float kE2M1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                             -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

class Nvfp4Layout final : public ModuleLayout {
 public:
  Nvfp4Layout(const char* suffix, const char* factor, bool divides)
      : suffix_(suffix), factor_(factor), divides_(divides) {}

  std::string_view suffix() const override { return suffix_; }

  QuantizedTensors find(const ModulePlace& place) const override {
    const TensorInfo& numbers = place.numbers;
    if (!is_matrix(numbers, {DType::kU8})) place.refuse(numbers, "U8 [rows, columns / 2]");
    QuantizedTensors tensors = place.tensors(numbers.shape[0], 2 * numbers.shape[1]);
    tensors.group_size = static_cast<int>(kNvfp4Columns);
    tensors.scales = &place.require(".weight_scale");
    place.check(*tensors.scales, {DType::kF8E4M3}, {tensors.rows, tensors.stored_groups()});
    const TensorInfo& factor = place.require(factor_);
    place.check(factor, {DType::kF32},
                factor.shape.empty() ? std::vector<int64_t>{} : std::vector<int64_t>{1});
    tensors.others.push_back(&factor);
    tensors.floats = DType::kBF16;
    tensors.widened_for = "its 4-bit floats with an 8-bit scale for 16 columns";
    const BlockFormat* format = find_block_format(kNvfp4Type);
    const float number = read_factor(place.checkpoint, tensors);
    const float multiplier = divides_ ? 1.0f / number : number;
    if (!std::isfinite(multiplier)) {
      place.refuse(factor, "a number whose inverse is finite");
    }
    if (format != nullptr && tensors.cols % format->block_size == 0) {
      tensors.blocks = format;
      tensors.multiplier = multiplier;
    }
    return tensors;
  }

  std::vector<std::byte> read_blocks(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                     int64_t row_begin, int64_t row_end) const override {
    const int64_t cols = tensors.cols, groups = tensors.stored_groups();
    const int64_t count = row_end - row_begin;
    const auto numbers = read_elements<uint8_t>(checkpoint, *tensors.numbers, row_begin * cols / 2,
                                                count * cols / 2);
    const auto scales =
        read_elements<uint8_t>(checkpoint, *tensors.scales, row_begin * groups, count * groups);
    std::vector<std::byte> blocks;
    blocks.reserve(static_cast<size_t>(count * cols / tensors.blocks->block_size *
                                       tensors.blocks->block_bytes));
    for (size_t first = 0; first < scales.size(); first += kBlockGroups) {
      for (size_t group = first; group < first + kBlockGroups; ++group) {
        const uint8_t scale = scales[group] & kWithoutSign;
        if (scale == kNan) {
          refuse_element(checkpoint, *tensors.scales,
                         row_begin * groups + static_cast<int64_t>(group),
                         "is NaN; expected a number");
        }
        blocks.push_back(static_cast<std::byte>(scale));
      }
      for (size_t group = first; group < first + kBlockGroups; ++group) {
        // A byte here has the numbers of two neighbours, there those of i and i + 8.
        const uint8_t* pairs = numbers.data() + group * kNvfp4Columns / 2;
        // Scales of blocks have no sign: that of one here goes to its numbers.
        const int sign = scales[group] > kWithoutSign ? kNumberSign : 0;
        const auto number = [&](size_t i) { return (pairs[i / 2] >> (4 * (i % 2)) & 15) ^ sign; };
        for (size_t i = 0; i < kNvfp4Columns / 2; ++i) {
          blocks.push_back(static_cast<std::byte>(number(i) | number(i + kNvfp4Columns / 2) << 4));
        }
      }
    }
    return blocks;
  }

  std::vector<float> read_floats(const Checkpoint& checkpoint, const QuantizedTensors& tensors,
                                 int64_t row_begin, int64_t row_end) const override {
    const int64_t cols = tensors.cols, groups = tensors.stored_groups();
    const int64_t count = row_end - row_begin;
    const float factor = read_factor(checkpoint, tensors);
    const auto numbers = read_elements<uint8_t>(checkpoint, *tensors.numbers, row_begin * cols / 2,
                                                count * cols / 2);
    const auto scales =
        read_elements<uint8_t>(checkpoint, *tensors.scales, row_begin * groups, count * groups);
    std::vector<float> values(static_cast<size_t>(count * cols));
    for (int64_t row = 0; row < count; ++row) {
      for (int64_t group = 0; group < groups; ++group) {
        const auto at = static_cast<size_t>(row * groups + group);
        const float stored = e4m3_to_float(scales[at]);
        if (std::isnan(stored)) {
          refuse_element(checkpoint, *tensors.scales, row_begin * groups + static_cast<int64_t>(at),
                         "is NaN; expected a number");
        }
        const float scale = divides_ ? stored / factor : stored * factor;
        const int64_t end = std::min(cols, (group + 1) * kNvfp4Columns);
        for (int64_t col = group * kNvfp4Columns; col < end; ++col) {
          const auto i = static_cast<size_t>(row * cols + col);
          values[i] = kE2M1[numbers[i / 2] >> (4 * (col % 2)) & 15] * scale;
        }
      }
    }
    return values;
  }

 private:
  /// Reads what multiplies or divides all scales.
  float read_factor(const Checkpoint& checkpoint, const QuantizedTensors& tensors) const {
    const TensorInfo& info = *tensors.others.front();
    const float factor = read_finite(checkpoint, info, 0, 1).front();
    if (divides_ && factor == 0) {
      throw_bad_file(file_of(checkpoint, info) + ": tensor " + quote_text(info.name) +
                     " is 0; expected a number that divides the scales");
    }
    return factor;
  }

  const char* suffix_;
  const char* factor_;
  bool divides_;
};

/// Refuses a module whose tensors do not fit: place_mxfp4_modules takes the others.
class Mxfp4Layout final : public ModuleLayout {
 public:
  std::string_view suffix() const override { return ".weight_packed"; }

  QuantizedTensors find(const ModulePlace& place) const override {
    place.refuse(place.numbers, "U8 [rows, columns / 2] with whole blocks of 32 columns");
  }
};

}  // namespace

const ModuleLayout& nvfp4_layout() {
  static const Nvfp4Layout layout(".weight_packed", ".weight_global_scale", true);
  return layout;
}
const ModuleLayout& modelopt_nvfp4_layout() {
  static const Nvfp4Layout layout(".weight", ".weight_scale_2", false);
  return layout;
}
const ModuleLayout& mxfp4_layout() {
  static const Mxfp4Layout layout;
  return layout;
}

}  // namespace vitrine::checkpoint
