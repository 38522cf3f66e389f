// SPDX-License-Identifier: Apache-2.0
// Weights of folders that others' packages quantized: bit for bit those of the writer's own
// dequantization.
#include <gtest/gtest.h>

#include "core/sha256.h"
#include "quantized_folders.h"
#include "vitrine/checkpoint.h"
#include "vitrine/quant.h"

namespace vitrine::testing {
namespace {

std::string hash_of(std::vector<float> values) {
  for (float& value : values) value += 0.0f;  // one zero
  Sha256 hash;
  hash.update({reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)});
  return hex(hash.finish());
}

class QuantizedFolderTest : public ::testing::TestWithParam<std::string> {};

TEST_P(QuantizedFolderTest, HoldsTheWritersWeights) {
  const Checkpoint checkpoint = Checkpoint::open(quantized_folder(GetParam()));
  const nlohmann::json expected = expected_of(GetParam());
  for (const auto& [module, hash] : expected["modules"].items()) {
    EXPECT_EQ(hash_of(read_module(checkpoint, module)), hash) << module;
    // Rows by themselves are those of the whole.
    const auto tensors = checkpoint.find_quantized_tensors(module);
    if (!tensors) continue;
    const std::vector<float> all = checkpoint.read_quantized_floats(*tensors, 0, tensors->rows);
    for (int64_t row = 0; row < tensors->rows; row += 7) {
      const int64_t end = std::min(tensors->rows, row + 7);
      const auto begin = all.begin() + row * tensors->cols;
      EXPECT_EQ(checkpoint.read_quantized_floats(*tensors, row, end),
                std::vector<float>(begin, begin + (end - row) * tensors->cols));
    }
    if (tensors->floats) continue;
    EXPECT_EQ(dequantize_matrix(*checkpoint.read_quantized(module)), all) << module;
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedFolderTest, ::testing::ValuesIn(quantized_folders()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace vitrine::testing
