// SPDX-License-Identifier: Apache-2.0
// Reading quantized modules: what is the same for every layout (module_layout.h).
#include "checkpoint_impl.h"
#include "column_order.h"
#include "input_scale.h"
#include "module_layout.h"
#include "quant/pack.h"
#include "stacked_modules.h"
#include "text.h"

namespace vitrine {
namespace {

using checkpoint::throw_bad_file;

void check_rows(const QuantizedTensors& tensors, int64_t row_begin, int64_t row_end) {
  if (row_begin >= 0 && row_begin <= row_end && row_end <= tensors.rows) return;
  throw Error(ErrorKind::kInvalidArgument,
              "rows " + std::to_string(row_begin) + " to " + std::to_string(row_end) +
                  " of tensor " + quote_text(tensors.numbers->name) +
                  " are asked for; expected some of its " + std::to_string(tensors.rows));
}

/// Spreads what stands beside the file's groups to each group of the rows as they are read.
template <typename T>
std::vector<T> spread_groups(std::vector<T> stored, const QuantizedTensors& tensors) {
  if (stored.empty() || tensors.stored_group == tensors.group_size) return stored;
  const int64_t from = tensors.stored_groups(), to = tensors.groups();
  const auto rows = static_cast<int64_t>(stored.size()) / from;
  std::vector<T> spread;
  spread.reserve(static_cast<size_t>(rows * to));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t group = 0; group < to; ++group) {
      const int64_t at = group * tensors.group_size / tensors.stored_group;
      spread.push_back(stored[static_cast<size_t>(row * from + at)]);
    }
  }
  return spread;
}

bool is_float_class(const QuantizedTensors& tensors) {
  return tensors.floats.has_value() || tensors.number_format == NumberFormat::kE4M3;
}

}  // namespace

const TensorInfo* Checkpoint::find_quantized(std::string_view base_name) const {
  const std::string base(base_name);
  for (const char* suffix : {".weight_packed", ".qweight", ".q_weight", ".compressed"}) {
    if (const TensorInfo* numbers = find(base + suffix)) return numbers;
  }
  const TensorInfo* weight = find(base + ".weight");
  if (weight == nullptr) return nullptr;
  const bool is_quantized =
      weight->dtype == DType::kF8E4M3 || weight->dtype == DType::kI8 || weight->dtype == DType::kU8;
  return is_quantized ? weight : nullptr;
}

bool Checkpoint::is_quantized() const { return impl_->quantization != nullptr; }

std::optional<QuantizedModule> Checkpoint::quantized_module(std::string_view base_name) const {
  if (!impl_->quantization) return std::nullopt;
  const TensorInfo* numbers = find_quantized(base_name);
  return checkpoint::find_scheme(*impl_->quantization, base_name,
                                 numbers == nullptr ? std::string_view() : numbers->fused_from);
}

std::vector<std::string> Checkpoint::quantization_notes() const {
  return impl_->quantization ? impl_->quantization->notes() : std::vector<std::string>();
}

namespace {

/// A gate and an up run in one kernel: both in integers of one group size, or both as floats.
void match_partner(QuantizedTensors& tensors, const std::optional<QuantizedTensors>& partner,
                   bool has_dense_partner) {
  if (is_float_class(tensors)) return;
  const bool fits = partner ? !is_float_class(*partner) && partner->group_size == tensors.group_size
                            : !has_dense_partner;
  if (fits) return;
  tensors.floats = DType::kF32;
  tensors.activations = ActivationUse::kFloat;
  tensors.widened_for = "gate and up of unlike groups or types";
  tensors.is_in_place = false;
}

}  // namespace

std::optional<QuantizedTensors> Checkpoint::find_quantized_tensors(
    std::string_view base_name) const {
  std::optional<QuantizedTensors> tensors = find_lone_quantized(base_name);
  const std::string partner =
      tensors ? checkpoint::partner_of(std::string(base_name)) : std::string();
  if (!partner.empty() && !is_float_class(*tensors)) {
    const std::optional<QuantizedTensors> other = find_lone_quantized(partner);
    match_partner(*tensors, other, find(partner + ".weight") != nullptr);
    checkpoint::match_input_scales(*tensors, other);
  } else if (!partner.empty() && tensors->blocks != nullptr) {
    // A gate and an up run in one kernel: both as blocks, or neither.
    const std::optional<QuantizedTensors> other = find_lone_quantized(partner);
    if (!other || other->blocks != tensors->blocks) tensors->blocks = nullptr;
  } else if (!partner.empty() && checkpoint::is_sortable(*tensors)) {
    checkpoint::match_orders(*tensors, find_lone_quantized(partner));
  }
  return tensors;
}

std::optional<QuantizedTensors> Checkpoint::find_lone_quantized(std::string_view base_name) const {
  const TensorInfo* numbers = find_quantized(base_name);
  if (numbers == nullptr) return std::nullopt;
  const std::optional<QuantizedModule> scheme = quantized_module(base_name);
  const auto refuse = [&](const std::string& but, const std::string& expected) {
    throw_bad_file(checkpoint::file_of(*this, *numbers) + ": tensor " + quote_text(numbers->name) +
                   " is " + std::string(dtype_name(numbers->dtype)) +
                   ", but quantization_config of " + impl_->config_path + " " + but +
                   "; expected " + expected);
  };
  if (!scheme) refuse("leaves the module out", "a group that targets it");
  if (!numbers->name.ends_with(scheme->layout->suffix()) ||
      (scheme->number_format == NumberFormat::kE4M3 && numbers->dtype != DType::kF8E4M3)) {
    refuse("says otherwise", "what its format, " + std::string(scheme->format) + ", says");
  }
  const auto columns = impl_->stacked_columns.find(numbers->fused_from);
  const int64_t known = columns == impl_->stacked_columns.end() ? 0 : columns->second;
  const std::string base(base_name);
  QuantizedTensors tensors = scheme->layout->find({*this, base, *numbers, *scheme, known});
  checkpoint::read_input_scale(*this, base, scheme->activations, tensors);
  return tensors;
}

std::vector<float> Checkpoint::read_quantized_scales(const QuantizedTensors& tensors,
                                                     int64_t row_begin, int64_t row_end) const {
  check_rows(tensors, row_begin, row_end);
  return spread_groups(tensors.layout->read_scales(*this, tensors, row_begin, row_end), tensors);
}

std::vector<int8_t> Checkpoint::read_quantized_zero_points(const QuantizedTensors& tensors,
                                                           int64_t row_begin,
                                                           int64_t row_end) const {
  check_rows(tensors, row_begin, row_end);
  return spread_groups(tensors.layout->read_zero_points(*this, tensors, row_begin, row_end),
                       tensors);
}

QuantizedRows Checkpoint::read_quantized_rows(const QuantizedTensors& tensors, int64_t row_begin,
                                              int64_t row_end) const {
  check_rows(tensors, row_begin, row_end);
  if (tensors.floats || tensors.number_format != NumberFormat::kInteger) {
    throw Error(ErrorKind::kInvalidArgument, "tensor " + quote_text(tensors.numbers->name) +
                                                 " is read as floats; expected integers");
  }
  std::vector<int32_t> words = tensors.layout->read_words(*this, tensors, row_begin, row_end);
  if (checkpoint::is_sorted(tensors)) {
    words = checkpoint::sort_columns(words, row_end - row_begin, tensors);
  }
  return {std::move(words), read_quantized_scales(tensors, row_begin, row_end),
          read_quantized_zero_points(tensors, row_begin, row_end)};
}

std::vector<float> Checkpoint::read_quantized_floats(const QuantizedTensors& tensors,
                                                     int64_t row_begin, int64_t row_end) const {
  check_rows(tensors, row_begin, row_end);
  return tensors.layout->read_floats(*this, tensors, row_begin, row_end);
}

std::vector<std::byte> Checkpoint::read_quantized_blocks(const QuantizedTensors& tensors,
                                                         int64_t row_begin, int64_t row_end) const {
  check_rows(tensors, row_begin, row_end);
  if (tensors.blocks == nullptr) {
    throw Error(ErrorKind::kInvalidArgument, "tensor " + quote_text(tensors.numbers->name) +
                                                 " is read as floats; expected blocks");
  }
  return tensors.layout->read_blocks(*this, tensors, row_begin, row_end);
}

std::optional<QuantizedMatrix> Checkpoint::read_quantized(std::string_view base_name) const {
  const std::optional<QuantizedTensors> tensors = find_quantized_tensors(base_name);
  if (!tensors) return std::nullopt;
  const TensorInfo& numbers = *tensors->numbers;
  QuantizedMatrix matrix;
  matrix.number_format = tensors->number_format;
  matrix.bits = tensors->bits;
  matrix.group_size = tensors->group_size;
  matrix.rows = tensors->rows;
  matrix.cols = tensors->cols;
  matrix.scale_dtype = tensors->scale_dtype;
  if (tensors->number_format == NumberFormat::kE4M3 && !tensors->floats) {
    matrix.scales = read_quantized_scales(*tensors, 0, tensors->rows);
    matrix.values.resize(static_cast<size_t>(numbers.num_bytes));
    read(numbers, std::as_writable_bytes(std::span(matrix.values)));
    for (size_t i = 0; i < matrix.values.size(); ++i) {
      if ((matrix.values[i] & 0x7f) != 0x7f) continue;
      checkpoint::refuse_element(*this, numbers, static_cast<int64_t>(i),
                                 "is NaN; expected a number");
    }
    return matrix;
  }
  QuantizedRows rows = read_quantized_rows(*tensors, 0, tensors->rows);
  matrix.values = unpack_int32(rows.words, matrix.rows, matrix.cols, matrix.bits);
  matrix.scales = std::move(rows.scales);
  matrix.zero_points = std::move(rows.zero_points);
  return matrix;
}

std::string QuantizedTensors::runs_as() const {
  if (blocks != nullptr) return std::string(blocks->name);
  if (checkpoint::is_sortable(*this)) {
    return checkpoint::sorted(*this).runs_as() + ", sorted by " + std::string(layout->order_name());
  }
  if (floats) {
    const std::string name = *floats == DType::kBF16  ? "bf16"
                             : *floats == DType::kF16 ? "f16"
                                                      : "f32";
    return widened_for.empty() ? name : name + ": no kernel reads " + std::string(widened_for);
  }
  if (number_format == NumberFormat::kE4M3) {
    if (block_cols == 0) return block_rows == 0 ? "fp8, one scale" : "fp8, a scale a row";
    return "fp8, blocks of " + std::to_string(block_rows) + " x " + std::to_string(block_cols);
  }
  return "int" + std::to_string(bits) + ", groups of " + std::to_string(group_size) +
         (zero_points == nullptr ? "" : ", with zero points") +
         (activations == ActivationUse::kDynamic  ? ", activations with a scale a token"
          : activations == ActivationUse::kStatic ? ", activations with a scale of the file"
                                                  : "");
}

uint64_t QuantizedTensors::file_bytes() const {
  uint64_t bytes = numbers->stored_bytes + (scales == nullptr ? 0 : scales->stored_bytes) +
                   (zero_points == nullptr ? 0 : zero_points->stored_bytes);
  for (const TensorInfo* info : others) bytes += info->stored_bytes;
  return bytes;
}

uint64_t QuantizedTensors::memory_bytes() const {
  const auto elements = static_cast<uint64_t>(rows * cols);
  if (blocks != nullptr) {
    return elements / static_cast<uint64_t>(blocks->block_size) *
           static_cast<uint64_t>(blocks->block_bytes);
  }
  if (checkpoint::is_sortable(*this)) {
    return checkpoint::sorted(*this).memory_bytes() + column_groups->size() * sizeof(int32_t);
  }
  if (floats) return elements * dtype_size(*floats);
  if (number_format == NumberFormat::kE4M3) {
    return elements + static_cast<uint64_t>(rows * groups()) * sizeof(float);
  }
  constexpr int64_t kTileRows = 16, kUnitCols = 32;
  const int64_t all_rows = (rows + kTileRows - 1) / kTileRows * kTileRows;
  const int64_t all_cols = (cols + kUnitCols - 1) / kUnitCols * kUnitCols;
  const auto all_groups = static_cast<uint64_t>(all_rows * groups());
  return static_cast<uint64_t>(all_rows * all_cols * bits / 8) +
         all_groups * (dtype_size(scale_dtype) + (zero_points == nullptr ? 0 : 1));
}

}  // namespace vitrine
