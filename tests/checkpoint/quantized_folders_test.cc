// SPDX-License-Identifier: Apache-2.0
// Weights of folders that others' packages quantized: bit for bit those of the writer's own
// dequantization.
#include <gtest/gtest.h>

#include "checkpoint/column_order.h"
#include "core/sha256.h"
#include "quant/pack.h"
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

/// Reads a module's rows with their columns sorted by group, and puts each number, dequantized,
/// where the file has it.
std::vector<float> read_sorted(const Checkpoint& from, const QuantizedTensors& tensors) {
  const QuantizedTensors sorted = vitrine::checkpoint::sorted(tensors);
  const std::vector<int32_t> order = vitrine::checkpoint::column_order(sorted);
  const QuantizedRows rows = from.read_quantized_rows(sorted, 0, sorted.rows);
  QuantizedMatrix matrix;
  matrix.bits = sorted.bits;
  matrix.group_size = sorted.group_size;
  matrix.rows = sorted.rows;
  matrix.cols = sorted.cols;
  matrix.scale_dtype = sorted.scale_dtype;
  matrix.values = unpack_int32(rows.words, sorted.rows, sorted.cols, sorted.bits);
  matrix.scales = rows.scales;
  matrix.zero_points = rows.zero_points;
  const std::vector<float> values = dequantize_matrix(matrix);
  std::vector<float> in_file(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t col = i % order.size();
    in_file[i - col + static_cast<size_t>(order[col])] = values[i];
  }
  return in_file;
}

class QuantizedFolderTest : public ::testing::TestWithParam<std::string> {};

TEST_P(QuantizedFolderTest, HoldsTheWritersWeights) {
  const Checkpoint checkpoint = Checkpoint::open(quantized_folder(GetParam()));
  const nlohmann::json expected = expected_of(GetParam());
  for (const auto& [module, hash] : expected["modules"].items()) {
    EXPECT_EQ(hash_of(read_module(checkpoint, module, expected)), hash) << module;
    // Rows by themselves are those of the whole.
    const auto tensors = find_module(checkpoint, module, expected);
    if (!tensors) continue;
    const std::vector<float> all = checkpoint.read_quantized_floats(*tensors, 0, tensors->rows);
    for (int64_t row = 0; row < tensors->rows; row += 7) {
      const int64_t end = std::min(tensors->rows, row + 7);
      const auto begin = all.begin() + row * tensors->cols;
      EXPECT_EQ(checkpoint.read_quantized_floats(*tensors, row, end),
                std::vector<float>(begin, begin + (end - row) * tensors->cols));
    }
    if (vitrine::checkpoint::is_sortable(*tensors)) {
      EXPECT_EQ(read_sorted(checkpoint, *tensors), all) << module;
    }
    if (tensors->floats) continue;
    std::vector<float> whole = dequantize_matrix(*checkpoint.read_quantized(module));
    EXPECT_TRUE(std::all_of(whole.begin() + static_cast<ptrdiff_t>(all.size()), whole.end(),
                            [](float value) { return value == 0; }));  // what fills up the rows
    whole.resize(all.size());
    EXPECT_EQ(whole, all) << module;
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedFolderTest, ::testing::ValuesIn(quantized_folders()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace vitrine::testing
