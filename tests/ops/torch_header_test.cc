// SPDX-License-Identifier: Apache-2.0
// vitrine/torch.h: both ways share memory and keep type, shape and device.
#include "vitrine/torch.h"

#include <gtest/gtest.h>

#include <numeric>

namespace {

using vitrine::DType;
using vitrine::TensorView;

constexpr DType kAllTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kI8,   DType::kU8,
                               DType::kI16, DType::kI32, DType::kI64,  DType::kBool, DType::kF64};

TEST(TorchHeader, EveryTypeComesBackAndHasItsSize) {
  for (const DType dtype : kAllTypes) {
    EXPECT_EQ(vitrine::from_torch(vitrine::to_torch(dtype)), dtype);
    EXPECT_EQ(at::elementSize(vitrine::to_torch(dtype)), vitrine::dtype_size(dtype));
  }
}

TEST(TorchHeader, AViewBecomesATensorOverTheSameMemory) {
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.0F);
  TensorView view;
  view.data = values.data();
  view.shape = {2, 3, 4};
  const at::Tensor tensor = vitrine::to_torch(view);
  EXPECT_EQ(tensor.const_data_ptr(), values.data());
  EXPECT_EQ(tensor.sizes(), at::IntArrayRef({2, 3, 4}));
  EXPECT_EQ(tensor.select(0, 1).select(0, 2).select(0, 3).item<float>(), 23.0F);
  values[23] = -1.0F;
  EXPECT_EQ(tensor.select(0, 1).select(0, 2).select(0, 3).item<float>(), -1.0F);

  const TensorView again = vitrine::from_torch(tensor);
  EXPECT_EQ(again.data, view.data);
  EXPECT_EQ(again.shape, view.shape);
  EXPECT_EQ(again.dtype, view.dtype);
  EXPECT_EQ(again.device, view.device);
  EXPECT_EQ(again.num_bytes(), 96u);
}

TEST(TorchHeader, ScalarsAndEmptyTensors) {
  const int64_t value = 42;
  TensorView scalar;
  scalar.data = &value;
  scalar.dtype = DType::kI64;
  EXPECT_EQ(vitrine::to_torch(scalar).item<int64_t>(), 42);
  TensorView empty;
  empty.shape = {3, 0};
  EXPECT_EQ(vitrine::to_torch(empty).sizes(), at::IntArrayRef({3, 0}));
}

TEST(TorchHeader, DevicesComeBack) {
  for (const char* name : {"cpu", "cuda:1", "mps"}) {
    const vitrine::Device device = vitrine::Device::parse(name);
    EXPECT_EQ(vitrine::from_torch(vitrine::to_torch(device)), device);
  }
  EXPECT_THROW(vitrine::from_torch(at::Device("meta")), vitrine::Error);
}

TEST(TorchHeader, WhatCannotBeConvertedIsRefused) {
  EXPECT_THROW(vitrine::from_torch(at::Tensor()), vitrine::Error);
  EXPECT_THROW(vitrine::from_torch(at::zeros({3, 4}).transpose(0, 1)), vitrine::Error);
  EXPECT_THROW(vitrine::from_torch(at::zeros({2}, at::kComplexFloat)), vitrine::Error);
  TensorView view;
  view.shape = {2};
  EXPECT_THROW(vitrine::to_torch(view), vitrine::Error);  // no data
  view.shape = {-1};
  EXPECT_THROW(vitrine::to_torch(view), vitrine::Error);
  view.shape = {int64_t{1} << 40, int64_t{1} << 40};
  EXPECT_THROW(vitrine::to_torch(view), vitrine::Error);
}

}  // namespace
