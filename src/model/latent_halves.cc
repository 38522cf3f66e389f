// SPDX-License-Identifier: Apache-2.0
#include "model/latent_halves.h"

#include <algorithm>

#include "model/stored_matrix.h"

namespace vitrine::model {
namespace {

/// Throws kBadFile where the halves are not those of a matrix [rows, cols].
void check_latent_halves(const Checkpoint& checkpoint, const LatentHalves& halves, int64_t rows,
                         int64_t cols) {
  const std::vector<int64_t>&key_shape = halves.keys->shape, &value_shape = halves.values->shape;
  const bool fits = key_shape.size() == 3 && value_shape.size() == 3 &&
                    key_shape[0] == value_shape[0] && key_shape[1] == cols &&
                    value_shape[2] == cols && key_shape[0] > 0 && rows % key_shape[0] == 0 &&
                    key_shape[2] + value_shape[1] == rows / key_shape[0];
  if (!fits) {
    throw Error(ErrorKind::kBadFile,
                checkpoint.path() + ": tensors '" + checkpoint.name_in_file(halves.keys->name) +
                    "' and '" + checkpoint.name_in_file(halves.values->name) +
                    "' do not make a matrix [" + std::to_string(rows) + ", " +
                    std::to_string(cols) +
                    "]; expected [heads, latent, rows] and [heads, rows, latent]");
  }
}

}  // namespace

std::optional<LatentHalves> find_latent_halves(const Checkpoint& checkpoint,
                                               const std::string& module) {
  constexpr std::string_view kWhole = ".kv_b_proj";
  if (!module.ends_with(kWhole) || checkpoint.find(module + ".weight") != nullptr) return {};
  const std::string prefix = module.substr(0, module.size() - kWhole.size());
  LatentHalves halves;
  halves.keys = checkpoint.find(prefix + ".k_b_proj.weight");
  if (halves.keys == nullptr) return {};
  halves.values = &checkpoint.require(prefix + ".v_b_proj.weight");
  return halves;
}

std::vector<float> join_latent_halves(const Checkpoint& checkpoint, const LatentHalves& halves,
                                      int64_t rows, int64_t cols) {
  check_latent_halves(checkpoint, halves, rows, cols);
  const std::vector<int64_t>&key_shape = halves.keys->shape, &value_shape = halves.values->shape;
  const std::vector<float> keys = checkpoint.read_f32(*halves.keys);
  const std::vector<float> values = checkpoint.read_f32(*halves.values);
  const int64_t heads = key_shape[0], key_rows = key_shape[2], value_rows = value_shape[1];
  std::vector<float> all(static_cast<size_t>(rows * cols));
  float* next = all.data();
  for (int64_t head = 0; head < heads; ++head) {
    const float* key = keys.data() + head * cols * key_rows;
    for (int64_t row = 0; row < key_rows; ++row) {
      for (int64_t i = 0; i < cols; ++i) *next++ = key[i * key_rows + row];
    }
    next = std::copy_n(values.data() + head * value_rows * cols, value_rows * cols, next);
  }
  return all;
}

}  // namespace vitrine::model
