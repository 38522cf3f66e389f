// SPDX-License-Identifier: Apache-2.0
// Inputs in a matrix's own order: the int8 rows of a row that was put in it by hand.
#include "ops/ordered_input.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

namespace vitrine::ops {
namespace {

class HostMemory final : public PlanMemory {
 public:
  void* allocate(size_t bytes) override {
    chunks_.push_back(std::make_unique<std::byte[]>(bytes + 64));
    auto address = reinterpret_cast<uintptr_t>(chunks_.back().get());
    return reinterpret_cast<void*>((address + 63) / 64 * 64);
  }

 private:
  std::vector<std::unique_ptr<std::byte[]>> chunks_;
};

struct Input {
  explicit Input(int64_t width) {
    rows.width = width;
    rows.capacity = 3;
    values.resize(static_cast<size_t>(rows.capacity * width));
    for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i * i + i));
    rows.data = values.data();
    order.resize(static_cast<size_t>(width));
    for (int64_t i = 0; i < width; ++i) {
      order[static_cast<size_t>(i)] = static_cast<int32_t>((i * 7 + 3) % width);
    }
  }
  std::vector<float> row_in_order(int64_t row) const {
    std::vector<float> result;
    for (const int32_t col : order) result.push_back(rows.row(row)[col]);
    return result;
  }
  RowBuffer rows;
  std::vector<float> values;
  std::vector<int32_t> order;
};

void expect_row(const kernels::CpuKernels& kernel, const std::vector<float>& row, int32_t group,
                const kernels::Activations& found, int64_t at) {
  const auto cols = static_cast<int64_t>(row.size());
  const auto groups = static_cast<size_t>(kernels::group_count(cols, group));
  std::vector<int8_t> values(static_cast<size_t>(kernels::padded_cols(cols)));
  std::vector<float> scales(groups);
  std::vector<kernels::GroupSum> sums(groups);
  kernel.quantize_row(row.data(), cols, group, values.data(), scales.data(), sums.data());
  EXPECT_EQ(
      std::memcmp(values.data(), found.quantized + at * found.quantized_stride, values.size()), 0);
  for (size_t i = 0; i < groups; ++i) {
    const int64_t place = at * found.group_stride + static_cast<int64_t>(i);
    EXPECT_EQ(scales[i], found.scales[place]);
    EXPECT_EQ(sums[i].whole, found.sums[place].whole);
    EXPECT_EQ(sums[i].first_half, found.sums[place].first_half);
    EXPECT_EQ(sums[i].weighted, found.sums[place].weighted);
  }
}

kernels::Weight weight_of(int64_t cols, int32_t group_size) {
  kernels::Weight weight;
  weight.format = kernels::WeightFormat::kInt4;
  weight.group_size = group_size;
  weight.rows = 16;
  weight.cols = cols;
  return weight;
}

TEST(OrderedInput, IsTheRowInThatOrder) {
  for (const kernels::CpuKernels* kernel : kernels::cpu_kernel_tables()) {
    SCOPED_TRACE(kernel->isa);
    HostMemory memory;
    PlanScratch scratch(memory, Graph(), {});
    for (const int64_t width : {40, 64, 1000, 1056, 3200}) {
      for (const int32_t group : {32, 64, 128}) {
        Input input(width);
        const std::vector<int32_t> other(input.order.rbegin(), input.order.rend());
        const kernels::Weight first = weight_of(width, group), same = first, second = first,
                              plain = first;
        OrderedInput ordered(*kernel, input.rows, "test");
        EXPECT_TRUE(ordered.empty());
        ordered.need(scratch, {&plain, nullptr});
        EXPECT_TRUE(ordered.empty());
        const std::vector<int32_t> copy = input.order;  // the same order, elsewhere
        ordered.need(scratch, {&first, input.order.data()});
        ordered.need(scratch, {&same, copy.data()});
        ordered.need(scratch, {&second, other.data()});
        StepState step;
        step.tokens = 3;
        const Phase phase = ordered.phase();
        for (int64_t piece = 0; piece < phase.pieces(step); ++piece) phase.run(step, piece);
        EXPECT_EQ(ordered.activations(first).quantized, ordered.activations(same).quantized);
        EXPECT_NE(ordered.activations(first).quantized, ordered.activations(second).quantized);
        for (int64_t row = 0; row < 3; ++row) {
          std::vector<float> expected = input.row_in_order(row);
          expect_row(*kernel, expected, group, ordered.activations(first), row);
          std::ranges::reverse(expected);
          expect_row(*kernel, expected, group, ordered.activations(second), row);
          input.rows.quantize(*kernel, row);
          const std::vector<float> as_is(input.rows.row(row), input.rows.row(row) + width);
          expect_row(*kernel, as_is, group, ordered.activations(plain), row);
        }
      }
    }
  }
}

TEST(OrderedInput, OfSlotsHasTheOrderOfEachExpert) {
  const kernels::CpuKernels& kernel = *kernels::cpu_kernel_tables().back();
  HostMemory memory;
  PlanScratch scratch(memory, Graph(), {});
  const Input input(96);
  const kernels::Weight plain = weight_of(96, 32), narrow = weight_of(96, 32),
                        wide = weight_of(96, 64);
  OrderedSlots slots(kernel, "slots", 5, 96, 3);
  slots.need(scratch, 0, {&plain, nullptr});
  EXPECT_TRUE(slots.empty());
  slots.need(scratch, 1, {&narrow, input.order.data()});
  slots.need(scratch, 2, {&wide, input.order.data()});
  EXPECT_FALSE(slots.has(0));
  for (int32_t expert = 0; expert < 3; ++expert) {
    slots.quantize(expert, 3 + expert % 2, input.rows.row(expert));
  }
  expect_row(kernel, input.row_in_order(1), 32, slots.activations(1), 4);
  expect_row(kernel, input.row_in_order(2), 64, slots.activations(2), 3);
}

}  // namespace
}  // namespace vitrine::ops
