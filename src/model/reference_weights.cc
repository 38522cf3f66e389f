// SPDX-License-Identifier: Apache-2.0
#include "model/reference_weights.h"

#include "model/stored_matrix.h"
#include "model/weights.h"

namespace vitrine::model {

at::Tensor TensorWeights::upload(std::vector<float> values, at::IntArrayRef shape) {
  num_bytes_ += values.size() * sizeof(float);
  num_parameters_ += static_cast<int64_t>(values.size());
  at::Tensor host =
      at::from_blob(values.data(), shape, at::TensorOptions().dtype(at::kFloat)).clone();
  return host.to(device_);
}

const at::Tensor& TensorWeights::matrix(const std::string& module, int64_t rows, int64_t cols) {
  auto found = matrices_.find(module);
  if (found != matrices_.end()) return found->second.tensor;
  Entry entry;
  std::vector<float> values;
  if (std::optional<QuantizedMatrix> quantized = checkpoint_.read_quantized(module)) {
    check_matrix_shape(checkpoint_, module, quantized->rows, quantized->cols, rows, cols);
    const bool is_float = quantized->number_format == NumberFormat::kE4M3;
    entry.group_size = is_float ? 0 : quantized->group_size;
    values = dequantize_matrix(*quantized);
  } else {
    if (find_packed_blocks(checkpoint_, module) != nullptr) entry.group_size = 32;
    const std::array<int64_t, 2> shape = {rows, cols};
    values = checkpoint_.read_f32(checkpoint_.require(module + ".weight", shape));
  }
  entry.tensor = upload(std::move(values), {rows, cols});
  return matrices_.emplace(module, std::move(entry)).first->second.tensor;
}

int64_t TensorWeights::group_size(const std::string& module) {
  auto found = matrices_.find(module);
  return found == matrices_.end() ? 0 : found->second.group_size;
}

const at::Tensor& TensorWeights::vector(const std::string& tensor, int64_t length) {
  auto found = vectors_.find(tensor);
  if (found != vectors_.end()) return found->second;
  const std::array<int64_t, 1> shape = {length};
  std::vector<float> values = checkpoint_.read_f32(checkpoint_.require(tensor, shape));
  return vectors_.emplace(tensor, upload(std::move(values), {length})).first->second;
}

}  // namespace vitrine::model
