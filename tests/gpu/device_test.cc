// SPDX-License-Identifier: Apache-2.0
// What can be said of devices without having one: the errors, and the guard that keeps float32.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "backend_torch/torch_device.h"
#include "tests/support/test_data.h"
#include "vitrine/engine.h"

namespace {

using at::Float32Backend;
using at::Float32Op;
using at::Float32Precision;
using vitrine::backend_torch::Float32Guard;

Float32Precision matmul_precision() {
  return at::globalContext().float32Precision(Float32Backend::CUDA, Float32Op::MATMUL);
}

class HostPrecision : public testing::TestWithParam<Float32Precision> {
 protected:
  void SetUp() override {
    before_ = matmul_precision();
    at::globalContext().setFloat32Precision(Float32Backend::CUDA, Float32Op::MATMUL, GetParam());
  }
  void TearDown() override {
    at::globalContext().setFloat32Precision(Float32Backend::CUDA, Float32Op::MATMUL, before_);
  }
  Float32Precision before_ = Float32Precision::NONE;
};

TEST_P(HostPrecision, IsFloat32UnderTheGuardAndThenWhatItWas) {
  ASSERT_EQ(matmul_precision(), GetParam());
  {
    const Float32Guard guard(c10::Device(c10::DeviceType::CUDA, 0));
    EXPECT_TRUE(at::NoTF32Guard::should_disable_tf32());
    EXPECT_NE(matmul_precision(), Float32Precision::TF32);
  }
  EXPECT_FALSE(at::NoTF32Guard::should_disable_tf32());
  EXPECT_EQ(matmul_precision(), GetParam());
}

TEST_P(HostPrecision, IsLeftAloneOnTheCpu) {
  const Float32Guard guard(c10::Device(c10::DeviceType::CPU));
  EXPECT_FALSE(at::NoTF32Guard::should_disable_tf32());
  EXPECT_EQ(matmul_precision(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Precisions, HostPrecision,
                         testing::Values(Float32Precision::IEEE, Float32Precision::TF32));

TEST(AbsentDevice, IsOneLineThatSaysWhatToDo) {
  // The last device that has a name: no machine has it.
  for (const auto& [name, asks_for_fused] :
       {std::pair{"cuda:63", false}, {"cuda:63", true}, {"mps", false}}) {
    vitrine::EngineOptions options;
    options.device = vitrine::Device::parse(name);
    if (asks_for_fused) options.kernels = vitrine::KernelPath::kFused;
    try {
      vitrine::Engine::load(vitrine::testing_support::test_data("oracles/llama"), options);
      ADD_FAILURE() << name;
    } catch (const vitrine::Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.kind(), vitrine::ErrorKind::kUnavailable);
      EXPECT_EQ(text.find('\n'), text.npos);
      EXPECT_NE(text.find("device '"), text.npos) << text;
      EXPECT_NE(text.find("--device cpu"), text.npos) << text;
    }
  }
}

}  // namespace
