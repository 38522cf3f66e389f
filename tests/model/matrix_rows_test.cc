// SPDX-License-Identifier: Apache-2.0
// Parts of matrices, as plans that are divided ask for them: joined they are the whole, bit for
// bit.
#include <gtest/gtest.h>

#include <random>

#include "checkpoint/model_config.h"
#include "engine/run/plan_arena.h"
#include "model/weights.h"
#include "ops/products.h"
#include "tests/engine/engine_fixture.h"

namespace vitrine::testing {
namespace {

std::vector<ModelVariant> variants() {
  std::vector<ModelVariant> all = block_variants();
  all.push_back({"llama", ""});
  for (const char* scheme : {"int4", "int3", "int8", "fp8"}) all.push_back({"llama", scheme});
  return all;
}

class MatrixRows : public ::testing::TestWithParam<ModelVariant> {
 protected:
  MatrixRows()
      : folder_(GetParam()),
        checkpoint_(Checkpoint::open(folder_.path())),
        config_(parse_model_config(checkpoint_)),
        kernel_(ops::select_cpu_kernels()) {}

  /// Row `row` as floats.
  std::vector<float> row_of(const ops::Products& products, const kernels::Weight& weight,
                            int64_t row) const {
    std::vector<float> values(static_cast<size_t>(weight.cols));
    products.embed_row(weight, row, 1, values.data());
    return values;
  }
  void expect_joined(bool mapped, const std::string& module, int64_t rows, int64_t cols) const {
    model::CheckpointWeights weights(kernel_, checkpoint_, /*read=*/true, 0, mapped);
    const kernels::Weight& whole = weights.matrix(module, rows, cols);
    const int64_t middle = rows / 2 / kernels::kTileRows * kernels::kTileRows;
    ASSERT_GT(middle, 0);
    const kernels::Weight& first = weights.matrix_rows(module, rows, cols, 0, middle);
    const kernels::Weight& second = weights.matrix_rows(module, rows, cols, middle, rows);
    EXPECT_EQ(&second, &weights.matrix_rows(module, rows, cols, middle, rows)) << "it stays";
    EXPECT_EQ(first.rows, middle);
    EXPECT_EQ(second.rows, rows - middle);
    engine::PlanArena arena;
    ops::Products products(kernel_);
    products.allocate(arena, 1, weights.strip_bytes());
    weights.load(2, 0);
    for (int64_t row = 0; row < rows; ++row) {
      const bool is_first = row < middle;
      ASSERT_EQ(row_of(products, is_first ? first : second, is_first ? row : row - middle),
                row_of(products, whole, row))
          << module << ", row " << row << (mapped ? ", mapped" : "");
    }
    if (whole.data == nullptr) return;
    // What products read is the whole's, behind its beginning.
    kernels::Weight before = whole;
    before.rows = middle;
    const kernels::WeightBytes skipped = kernels::packed_bytes(before);
    const kernels::WeightBytes bytes = kernels::packed_bytes(second);
    const auto expect_same = [](const void* all, size_t offset, const void* part, size_t size) {
      if (size == 0) return;
      EXPECT_EQ(std::memcmp(static_cast<const std::byte*>(all) + offset, part, size), 0);
    };
    expect_same(whole.data, skipped.data, second.data, bytes.data);
    expect_same(whole.scales, skipped.scales, second.scales, bytes.scales);
    expect_same(whole.offsets, skipped.offsets, second.offsets, bytes.offsets);
    expect_same(whole.data, 0, first.data, skipped.data);
  }

  VariantFolder folder_;
  Checkpoint checkpoint_;
  ModelConfig config_;
  const kernels::CpuKernels& kernel_;
};

TEST_P(MatrixRows, JoinToTheWhole) {
  const int64_t hidden = config_.hidden_size;
  for (const bool mapped : {false, true}) {
    expect_joined(mapped, "model.layers.0.self_attn.q_proj", config_.num_heads * config_.head_dim,
                  hidden);
    expect_joined(mapped, "model.layers.0.self_attn.o_proj", hidden,
                  config_.num_heads * config_.head_dim);
  }
}

TEST_P(MatrixRows, RangesThatCutATileAreRefused) {
  model::CheckpointWeights weights(kernel_, checkpoint_, /*read=*/false);
  const int64_t rows = config_.num_heads * config_.head_dim;
  const std::string module = "model.layers.0.self_attn.q_proj";
  for (const auto& [begin, end] :
       {std::pair<int64_t, int64_t>{0, 7}, {3, rows}, {16, 16}, {0, rows + 16}}) {
    EXPECT_THROW(weights.matrix_rows(module, rows, config_.hidden_size, begin, end), Error);
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, MatrixRows, ::testing::ValuesIn(variants()), variant_name);

// The head of a vocabulary in two parts: the same logits, statistics and best tokens.
TEST(HeadRows, PartsGiveTheWholesLogitsAndStatistics) {
  const kernels::CpuKernels& kernel = ops::select_cpu_kernels();
  const int64_t vocabulary = 3 * kernels::kHeadBlock + 37, cols = 48;
  const int64_t middle = 2 * kernels::kHeadBlock;
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> matrix(static_cast<size_t>(vocabulary * cols)), input(cols);
  for (float& value : matrix) value = normal(rng);
  for (float& value : input) value = normal(rng);
  kernels::Weight whole;
  whole.rows = vocabulary;
  whole.cols = cols;
  whole.data = matrix.data();
  kernels::Weight first = whole, second = whole;
  first.rows = middle;
  second.rows = vocabulary - middle;
  second.data = matrix.data() + middle * cols;
  kernels::Activations activations;
  activations.values = input.data();
  activations.value_stride = cols;
  kernels::RowMap row;
  row.count = 1;
  const auto multiply = [&](const kernels::Weight& weight, float* out) {
    kernel.linear(weight, 0, weight.rows, activations, row, nullptr, nullptr, out, vocabulary);
  };
  std::vector<float> logits(static_cast<size_t>(vocabulary)), joined(logits.size());
  multiply(whole, logits.data());
  multiply(first, joined.data());
  multiply(second, joined.data() + middle);
  EXPECT_EQ(std::memcmp(logits.data(), joined.data(), logits.size() * sizeof(float)), 0);
  const auto statistics = [&](std::vector<float>& of,
                              std::vector<std::pair<int64_t, int64_t>> parts) {
    std::vector<kernels::HeadBlockStats> blocks;
    for (const auto& [from, to] : parts) {
      for (int64_t begin = from; begin < to; begin += kernels::kHeadBlock) {
        kernel.head_block(of.data(), begin, std::min(to, begin + kernels::kHeadBlock), 1, true,
                          &blocks.emplace_back(), nullptr);
      }
    }
    kernels::HeadStats stats;
    kernel.head_merge(blocks.data(), static_cast<int32_t>(blocks.size()), &stats);
    return stats;
  };
  const kernels::HeadStats one = statistics(logits, {{0, vocabulary}});
  const kernels::HeadStats two = statistics(joined, {{0, middle}, {middle, vocabulary}});
  EXPECT_EQ(one.log_sum_exp, two.log_sum_exp);
  EXPECT_EQ(one.entropy, two.entropy);
  EXPECT_EQ(one.digest, two.digest);
  EXPECT_EQ(one.count, two.count);
  for (int32_t i = 0; i < one.count; ++i) EXPECT_EQ(one.top_ids[i], two.top_ids[i]);
}

}  // namespace
}  // namespace vitrine::testing
