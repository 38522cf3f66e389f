#include "model/weights.h"

#include <array>
#include <cstdlib>

namespace vitrine::model {

AlignedBytes::AlignedBytes(size_t size, const std::string& what) : size_(size) {
  constexpr size_t kAlignment = 64;
  const size_t rounded = (size + kAlignment - 1) / kAlignment * kAlignment;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded + kAlignment)));
  if (data_ == nullptr) {
    throw Error(ErrorKind::kOutOfMemory, "cannot allocate " + std::to_string(size) + " bytes for " +
                                             what +
                                             "; free memory or use a smaller model or context");
  }
}

void AlignedBytes::Free::operator()(std::byte* pointer) const { std::free(pointer); }

std::byte* CheckpointWeights::allocate(Entry& entry, size_t size, const std::string& what) {
  entry.memory.emplace_back(size, "tensor '" + what + "'");
  num_bytes_ += size;
  return entry.memory.back().data();
}

const kernels::Weight& CheckpointWeights::matrix(const std::string& module, int64_t rows,
                                                 int64_t cols) {
  auto found = matrices_.find(module);
  if (found == matrices_.end()) {
    Entry entry;
    if (std::optional<QuantizedMatrix> quantized = checkpoint_.read_quantized(module)) {
      check_matrix_shape(checkpoint_, module, *quantized, rows, cols);
      load_quantized(entry, *quantized, module);
    } else {
      load_float(entry, module, rows, cols);
    }
    num_parameters_ += rows * cols;
    found = matrices_.emplace(module, std::move(entry)).first;
  }
  const kernels::Weight& weight = found->second.weight;
  if (weight.rows != rows || weight.cols != cols) {
    throw Error(ErrorKind::kInternal, "tensor '" + module + "' is used with two shapes");
  }
  return weight;
}

void CheckpointWeights::load_float(Entry& entry, const std::string& module, int64_t rows,
                                   int64_t cols) {
  const std::array<int64_t, 2> shape = {rows, cols};
  const TensorInfo& info = checkpoint_.require(module + ".weight", shape);
  kernels::Weight& weight = entry.weight;
  switch (info.dtype) {
    case DType::kF32: weight.format = kernels::WeightFormat::kF32; break;
    case DType::kF16: weight.format = kernels::WeightFormat::kF16; break;
    case DType::kBF16: weight.format = kernels::WeightFormat::kBF16; break;
    default:
      throw Error(ErrorKind::kUnsupported,
                  checkpoint_.path() + ": tensor '" + info.name + "' has dtype " +
                      std::string(dtype_name(info.dtype)) + "; expected F32, F16 or BF16");
  }
  weight.rows = rows;
  weight.cols = cols;
  if (!read_) return;
  std::byte* data = allocate(entry, info.num_bytes, module);
  checkpoint_.read(info, std::span(data, info.num_bytes));
  weight.data = data;
}

void CheckpointWeights::load_quantized(Entry& entry, const QuantizedMatrix& matrix,
                                       const std::string& module) {
  kernels::Weight& weight = entry.weight;
  weight.format = matrix.bits == 4 ? kernels::WeightFormat::kInt4 : kernels::WeightFormat::kInt8;
  weight.scale_format = matrix.scale_dtype == DType::kBF16  ? kernels::ScaleFormat::kBF16
                        : matrix.scale_dtype == DType::kF16 ? kernels::ScaleFormat::kF16
                                                            : kernels::ScaleFormat::kF32;
  weight.group_size = matrix.group_size;
  weight.rows = matrix.rows;
  weight.cols = matrix.cols;
  if (!matrix.zero_points.empty()) weight.offset_format = kernels::OffsetFormat::kZeroPoint;
  const kernels::WeightBytes bytes = kernels::packed_bytes(weight);
  std::byte* data = allocate(entry, bytes.data, module);
  std::byte* scales = allocate(entry, bytes.scales, module);
  kernels::pack_quantized(weight.format, weight.scale_format, weight.group_size, weight.rows,
                          weight.cols, 0, weight.rows, matrix.values.data(), matrix.scales.data(),
                          data, scales);
  weight.data = data;
  weight.scales = scales;
  if (bytes.offsets == 0) return;
  std::byte* offsets = allocate(entry, bytes.offsets, module);
  const std::vector<float> zero_points(matrix.zero_points.begin(), matrix.zero_points.end());
  kernels::pack_offsets(weight.offset_format, weight.group_size, weight.rows, weight.cols, 0,
                        weight.rows, zero_points.data(), offsets);
  weight.offsets = offsets;
}

const float* CheckpointWeights::vector(const std::string& tensor, int64_t length) {
  auto found = vectors_.find(tensor);
  if (found == vectors_.end()) {
    const std::array<int64_t, 1> shape = {length};
    const TensorInfo& info = checkpoint_.require(tensor, shape);
    std::vector<float> values(static_cast<size_t>(read_ ? 0 : length));
    if (read_) values = checkpoint_.read_f32(info);
    found = vectors_.emplace(tensor, std::move(values)).first;
    num_bytes_ += static_cast<uint64_t>(length) * sizeof(float);
    num_parameters_ += length;
  }
  return found->second.data();
}

void check_matrix_shape(const Checkpoint& checkpoint, const std::string& module,
                        const QuantizedMatrix& matrix, int64_t rows, int64_t cols) {
  if (matrix.rows == rows && matrix.cols == cols) return;
  throw Error(ErrorKind::kBadFile,
              checkpoint.path() + ": tensor '" + module + "' is [" + std::to_string(matrix.rows) +
                  ", " + std::to_string(matrix.cols) + "], but the config makes it [" +
                  std::to_string(rows) + ", " + std::to_string(cols) + "]");
}

}  // namespace vitrine::model
