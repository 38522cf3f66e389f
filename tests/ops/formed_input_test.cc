// SPDX-License-Identifier: Apache-2.0
// Inputs in a form of a matrix's own: the int8 rows of a row that was put in order by hand, and
// rows with one scale.
#include "ops/formed_input.h"

#include <gtest/gtest.h>

#include <algorithm>
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

TEST(FormedInput, IsTheRowInThatOrder) {
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
        FormedInput ordered(*kernel, input.rows, "test");
        EXPECT_TRUE(ordered.empty());
        ordered.need(scratch, {&plain, {}});
        EXPECT_TRUE(ordered.empty());
        const std::vector<int32_t> copy = input.order;  // the same order, elsewhere
        ordered.need(scratch, {&first, {.order = input.order.data()}});
        ordered.need(scratch, {&same, {.order = copy.data()}});
        ordered.need(scratch, {&second, {.order = other.data()}});
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

TEST(FormedInput, OfSlotsHasTheOrderOfEachExpert) {
  const kernels::CpuKernels& kernel = *kernels::cpu_kernel_tables().back();
  HostMemory memory;
  PlanScratch scratch(memory, Graph(), {});
  const Input input(96);
  const kernels::Weight plain = weight_of(96, 32), narrow = weight_of(96, 32),
                        wide = weight_of(96, 64);
  FormedSlots slots(kernel, "slots", 5, 96, 3);
  slots.need(scratch, 0, {&plain, {}});
  EXPECT_TRUE(slots.empty());
  slots.need(scratch, 1, {&narrow, {.order = input.order.data()}});
  slots.need(scratch, 2, {&wide, {.order = input.order.data()}});
  EXPECT_FALSE(slots.has(0));
  for (int32_t expert = 0; expert < 3; ++expert) {
    slots.quantize(expert, 3 + expert % 2, input.rows.row(expert));
  }
  expect_row(kernel, input.row_in_order(1), 32, slots.activations(1), 4);
  expect_row(kernel, input.row_in_order(2), 64, slots.activations(2), 3);
}

/// Expects the row with one scale: the file's, or that of its largest.
void expect_whole_row(const float* row, int64_t cols, int32_t group, float given,
                      const kernels::Activations& found, int64_t at) {
  float largest = 0.0f;
  for (int64_t i = 0; i < cols; ++i) largest = std::max(largest, std::fabs(row[i]));
  const float scale = given > 0.0f ? given : largest / 127.0f;
  const float factor = given > 0.0f ? 1.0f / given : 127.0f / largest;
  for (int64_t i = 0; i < cols; ++i) {
    const double expected = std::clamp(std::nearbyint(double{row[i] * factor}), -127.0, 127.0);
    ASSERT_EQ(found.quantized[at * found.quantized_stride + i], expected) << i;
    ASSERT_EQ(found.scales[at * found.group_stride + i / group], scale);
  }
}

TEST(FormedInput, HasOneScaleForARow) {
  for (const kernels::CpuKernels* kernel : kernels::cpu_kernel_tables()) {
    SCOPED_TRACE(kernel->isa);
    HostMemory memory;
    PlanScratch scratch(memory, Graph(), {});
    for (const int64_t width : {40, 1000, 3200}) {
      Input input(width);
      for (float& value : input.values) value *= value;  // so that groups differ
      const kernels::Weight own = weight_of(width, 128), fixed = own, same = own, plain = own;
      FormedInput formed(*kernel, input.rows, "test");
      formed.need(scratch, {&plain, {}});
      EXPECT_EQ(formed.kinds().name(), "");
      formed.need(scratch, {&own, {.row_scale = 0.0f}});
      formed.need(scratch, {&fixed, {.row_scale = 0.004f}});  // less than the largest needs
      formed.need(scratch, {&same, {.row_scale = 0.0f}});
      EXPECT_EQ(formed.kinds().name(), "+row_scale");
      for (int64_t row = 0; row < 3; ++row) formed.quantize(row);
      EXPECT_EQ(formed.activations(own).quantized, formed.activations(same).quantized);
      for (int64_t row = 0; row < 3; ++row) {
        expect_whole_row(input.rows.row(row), width, 128, 0.0f, formed.activations(own), row);
        expect_whole_row(input.rows.row(row), width, 128, 0.004f, formed.activations(fixed), row);
      }
    }
  }
}

TEST(FormedInput, OfSlotsHasTheScaleOfEachExpert) {
  const kernels::CpuKernels& kernel = *kernels::cpu_kernel_tables().back();
  HostMemory memory;
  PlanScratch scratch(memory, Graph(), {});
  const Input input(96);
  const kernels::Weight weight = weight_of(96, 32);
  FormedSlots slots(kernel, "slots", 5, 96, 3);
  slots.need(scratch, 0, {&weight, {.row_scale = 0.0f}});
  slots.need(scratch, 1, {&weight, {.row_scale = 0.01f}});
  slots.need(scratch, 2, {&weight, {.order = input.order.data()}});
  for (int32_t expert = 0; expert < 3; ++expert) {
    slots.quantize(expert, 4 - expert, input.rows.row(expert));
  }
  expect_whole_row(input.rows.row(0), 96, 32, 0.0f, slots.activations(0), 4);
  expect_whole_row(input.rows.row(1), 96, 32, 0.01f, slots.activations(1), 3);
  expect_row(kernel, input.row_in_order(2), 32, slots.activations(2), 2);
  EXPECT_EQ(form_name(slots, slots), "+order+row_scale");
}

}  // namespace
}  // namespace vitrine::ops
