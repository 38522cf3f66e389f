// SPDX-License-Identifier: Apache-2.0
#include "model/latent_weights.h"

#include <array>
#include <cstring>
#include <vector>

#include "kernels/cpu/half.h"
#include "kernels/cpu/widened_products.h"
#include "model/float_weights.h"
#include "model/latent_halves.h"

namespace vitrine::model {
namespace {

kernels::WeightFormat format_of(const Checkpoint& checkpoint, const ops::LatentModule& module) {
  const TensorInfo* info = checkpoint.find(module.module + ".weight");
  const auto halves = find_latent_halves(checkpoint, module.module);
  if (halves && halves->keys->dtype == halves->values->dtype && !halves->values->block_format) {
    info = halves->keys;
  } else if (info != nullptr && !checkpoint.quantized_module(module.module)) {
    const std::array<int64_t, 2> shape = {module.heads * (module.key_rows + module.value_rows),
                                          module.latent};
    checkpoint.require(info->name, shape);
  }
  if (info == nullptr || info->block_format != nullptr) return kernels::WeightFormat::kF32;
  if (info->dtype == DType::kBF16) return kernels::WeightFormat::kBF16;
  return info->dtype == DType::kF16 ? kernels::WeightFormat::kF16 : kernels::WeightFormat::kF32;
}

/// The numbers are such that the format holds them exactly.
void store(kernels::WeightFormat format, std::byte* to, int64_t index, float value) {
  if (format == kernels::WeightFormat::kF32) {
    std::memcpy(to + index * int64_t{sizeof(float)}, &value, sizeof(value));
    return;
  }
  const uint16_t bits = format == kernels::WeightFormat::kBF16 ? kernels::narrow_bf16(value)
                                                               : kernels::narrow_f16(value);
  std::memcpy(to + index * int64_t{sizeof(bits)}, &bits, sizeof(bits));
}

/// Throws kBadFile where the halves are not those of the model's heads.
void require_extents(const Checkpoint& checkpoint, const LatentHalves& halves,
                     const ops::LatentModule& module) {
  const std::array<int64_t, 3> of_keys = {module.heads, module.latent, module.key_rows};
  const std::array<int64_t, 3> of_values = {module.heads, module.value_rows, module.latent};
  checkpoint.require(halves.keys->name, of_keys);
  checkpoint.require(halves.values->name, of_values);
}

/// Each head's rows are tiles of their own.
bool is_multiplied_widened(const kernels::Weight& half, int64_t rows_of_head) {
  return kernels::has_widened_products(half) && rows_of_head % kernels::kTileRows == 0;
}

}  // namespace

std::optional<LatentBlocks> find_latent_blocks(const Checkpoint& checkpoint,
                                               const ops::LatentModule& module) {
  const auto halves = find_latent_halves(checkpoint, module.module);
  if (!halves) return std::nullopt;
  require_extents(checkpoint, *halves, module);
  // Kernels round a scale times its multiplier before they meet the number, floats behind it.
  if (halves->keys->multiplier != 1.0f || halves->values->multiplier != 1.0f) return std::nullopt;
  const auto keys = find_block_matrix(*halves->keys, module.heads * module.latent, module.key_rows);
  const auto values =
      find_block_matrix(*halves->values, module.heads * module.value_rows, module.latent);
  if (!keys || !values || !is_multiplied_widened(keys->weight, module.latent) ||
      !is_multiplied_widened(values->weight, module.value_rows)) {
    return std::nullopt;
  }
  return LatentBlocks{*keys, *values};
}

ops::LatentWeights find_latent_weights(const Checkpoint& checkpoint,
                                       const ops::LatentModule& module) {
  ops::LatentWeights weights;
  weights.keys.format = weights.values.format = format_of(checkpoint, module);
  weights.keys.rows = module.heads * module.latent;
  weights.keys.cols = module.key_rows;
  weights.values.rows = module.heads * module.value_rows;
  weights.values.cols = module.latent;
  return weights;
}

void read_latent_weights(const Checkpoint& checkpoint, const ops::LatentModule& module,
                         const ops::LatentWeights& weights, std::byte* keys, std::byte* values) {
  const int64_t rows = module.key_rows + module.value_rows, latent = module.latent;
  const std::vector<float> all = make_float_weights(checkpoint)
                                     ->read_matrix(module.module, module.heads * rows, latent)
                                     .values;
  for (int64_t head = 0; head < module.heads; ++head) {
    const float* own = all.data() + head * rows * latent;
    for (int64_t i = 0; i < latent; ++i) {
      for (int64_t row = 0; row < module.key_rows; ++row) {
        store(weights.keys.format, keys, (head * latent + i) * module.key_rows + row,
              own[row * latent + i]);
      }
    }
    const float* of_value = own + module.key_rows * latent;
    for (int64_t i = 0; i < module.value_rows * latent; ++i) {
      store(weights.values.format, values, head * module.value_rows * latent + i, of_value[i]);
    }
  }
}

}  // namespace vitrine::model
