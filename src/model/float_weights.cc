// SPDX-License-Identifier: Apache-2.0
#include "model/float_weights.h"

#include <array>
#include <optional>

#include "checkpoint/module_layout.h"
#include "model/latent_halves.h"
#include "model/named_vector.h"
#include "model/stored_matrix.h"
#include "vitrine/quant.h"

namespace vitrine::model {
namespace {

constexpr int64_t kBlockGroup = 32;  // columns of a scale of what kernels read as blocks

class CheckpointFloats final : public FloatWeights {
 public:
  explicit CheckpointFloats(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  FloatMatrix read_matrix(const std::string& module, int64_t rows, int64_t cols) const override {
    FloatMatrix matrix;
    if (auto quantized = checkpoint_.find_quantized_tensors(module)) {
      checkpoint::drop_filling(*quantized, rows);
      check_matrix_shape(checkpoint_, module, quantized->rows, quantized->cols, rows, cols);
      const bool is_float = quantized->floats || quantized->number_format == NumberFormat::kE4M3;
      matrix.group_size = quantized->blocks != nullptr ? kBlockGroup
                          : is_float                   ? 0
                                                       : quantized->group_size;
      matrix.values = checkpoint_.read_quantized_floats(*quantized, 0, rows);
      return matrix;
    }
    if (const auto halves = find_latent_halves(checkpoint_, module)) {
      matrix.values = join_latent_halves(checkpoint_, *halves, rows, cols);
      return matrix;
    }
    if (find_packed_blocks(checkpoint_, module) != nullptr) matrix.group_size = kBlockGroup;
    const std::array<int64_t, 2> shape = {rows, cols};
    matrix.values = checkpoint_.read_f32(checkpoint_.require(module + ".weight", shape));
    return matrix;
  }

  std::vector<float> read_vector(const std::string& tensor, int64_t length) const override {
    return read_named_vector(checkpoint_, find_named_vector(checkpoint_, tensor, length));
  }

 private:
  Checkpoint checkpoint_;
};

}  // namespace

std::unique_ptr<FloatWeights> make_float_weights(const Checkpoint& checkpoint) {
  return std::make_unique<CheckpointFloats>(checkpoint);
}

}  // namespace vitrine::model
