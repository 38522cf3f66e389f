#include "model/stored_matrix.h"

#include <array>
#include <utility>

#include "ops/weight_lines.h"

namespace vitrine::model {
namespace {

using ops::whole_lines;

const TensorInfo* find_blocks(const Checkpoint& checkpoint, const std::string& module) {
  const TensorInfo* info = checkpoint.find(module + ".weight");
  const bool fits = info != nullptr && info->shape.size() == 2 && info->block_format != nullptr &&
                    kernels::has_block_format(info->block_format->ggml_type);
  return fits ? info : nullptr;
}

std::string partner_of(const std::string& module) {
  constexpr std::pair<std::string_view, std::string_view> kPairs[] = {
      {".gate_proj", ".up_proj"}, {".up_proj", ".gate_proj"}, {".w1", ".w3"}, {".w3", ".w1"}};
  for (const auto& [suffix, other] : kPairs) {
    if (module.ends_with(suffix)) {
      return module.substr(0, module.size() - suffix.size()) + std::string(other);
    }
  }
  return {};
}

kernels::BlockFormat format_of(const TensorInfo& info) {
  return static_cast<kernels::BlockFormat>(info.block_format->ggml_type);
}

kernels::WeightFormat float_format(const Checkpoint& checkpoint, const TensorInfo& info) {
  switch (info.dtype) {
    case DType::kF32: return kernels::WeightFormat::kF32;
    case DType::kF16: return kernels::WeightFormat::kF16;
    case DType::kBF16: return kernels::WeightFormat::kBF16;
    default:
      throw Error(ErrorKind::kUnsupported,
                  checkpoint.path() + ": tensor '" + info.name + "' has dtype " +
                      std::string(dtype_name(info.dtype)) + "; expected F32, F16 or BF16");
  }
}

}  // namespace

const TensorInfo* find_packed_blocks(const Checkpoint& checkpoint, const std::string& module) {
  const TensorInfo* info = find_blocks(checkpoint, module);
  if (info == nullptr) return nullptr;
  const std::string partner = partner_of(module);
  return partner.empty() || find_blocks(checkpoint, partner) != nullptr ? info : nullptr;
}

size_t StoredMatrix::num_bytes() const { return whole_lines(bytes); }

void StoredMatrix::place(std::byte* memory) {
  weight.data = data = memory;
  if (bytes.scales != 0) weight.scales = scales = data + whole_lines(bytes.data);
  if (bytes.offsets != 0) weight.offsets = offsets = scales + whole_lines(bytes.scales);
}

bool StoredMatrix::map(const Checkpoint& checkpoint) {
  const std::span<const std::byte> mapped = checkpoint.map(*info);
  if (mapped.empty()) return false;
  if (kernels::is_float_format(weight.format)) {
    if (info->block_format != nullptr) return false;  // blocks that no kernel reads, as float32
    weight.data = mapped.data();
  } else {
    weight.blocks = mapped.data();
    weight.block_format = format_of(*info);
  }
  return true;
}

StoredMatrix find_stored_matrix(const Checkpoint& checkpoint, const std::string& module,
                                int64_t rows, int64_t cols) {
  const std::array<int64_t, 2> shape = {rows, cols};
  StoredMatrix matrix;
  matrix.info = &checkpoint.require(module + ".weight", shape);
  if (find_packed_blocks(checkpoint, module) != nullptr) {
    matrix.weight = kernels::block_weight(format_of(*matrix.info), rows, cols);
    matrix.stored_row_bytes = kernels::block_row_bytes(format_of(*matrix.info), cols);
  } else {
    matrix.weight.format = float_format(checkpoint, *matrix.info);
    matrix.weight.rows = rows;
    matrix.weight.cols = cols;
    matrix.stored_row_bytes = cols * static_cast<int64_t>(dtype_size(matrix.info->dtype));
  }
  matrix.bytes = kernels::packed_bytes(matrix.weight);
  return matrix;
}

Error bad_scale_error(const Checkpoint& checkpoint, const TensorInfo& info, int64_t row) {
  return {ErrorKind::kBadFile,
          checkpoint.weight_files()[static_cast<size_t>(info.file_index)] + ": tensor '" +
              info.name + "' has a scale that is infinite or no number" +
              (row >= 0 ? " in row " + std::to_string(row) : "") + "; expected finite numbers"};
}

void read_stored_rows(const kernels::CpuKernels& kernel, const Checkpoint& checkpoint,
                      const StoredMatrix& matrix, int64_t row_begin, int64_t row_end,
                      std::vector<std::byte>& buffer) {
  const TensorInfo& info = *matrix.info;
  const auto offset = static_cast<size_t>(row_begin * matrix.stored_row_bytes);
  const auto size = static_cast<size_t>((row_end - row_begin) * matrix.stored_row_bytes);
  if (kernels::is_float_format(matrix.weight.format)) {
    checkpoint.read(info, offset, std::span(matrix.data + offset, size));
    return;
  }
  buffer.resize(size);
  checkpoint.read_blocks(info, row_begin, buffer);
  const int64_t bad_row =
      kernel.pack_blocks(format_of(info), matrix.weight, row_begin, row_end, buffer.data(),
                         matrix.data, matrix.scales, matrix.offsets);
  if (bad_row >= 0) throw bad_scale_error(checkpoint, info, bad_row);
}

}  // namespace vitrine::model
