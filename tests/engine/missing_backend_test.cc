// SPDX-License-Identifier: Apache-2.0
// What is said where a backend is not there. This program holds the engine and no backend, and none
// lies beside it.
#include <gtest/gtest.h>

#include "tests/support/test_data.h"
#include "vitrine/engine.h"

namespace {

struct Missing {
  const char* device;
  const char* library;
  const char* instead;
};

class MissingBackend : public testing::TestWithParam<Missing> {};

TEST_P(MissingBackend, IsOneLineThatNamesItAndWhatBuildsIt) {
  vitrine::EngineOptions options;
  options.device = vitrine::Device::parse(GetParam().device);
  options.kernels = vitrine::KernelPath::kReference;
  const std::string model = vitrine::testing_support::test_data("oracles/llama");
  for (int i = 0; i < 2; ++i) {  // the second time it is known already
    try {
      vitrine::Engine::load(model, options);
      ADD_FAILURE() << "loaded";
    } catch (const vitrine::Error& error) {
      const std::string text = error.what();
      EXPECT_EQ(error.kind(), vitrine::ErrorKind::kUnavailable);
      EXPECT_EQ(text.find('\n'), text.npos) << text;
      for (const char* part : {GetParam().library, "cannot open shared object file",
                               "scripts/build all", GetParam().instead}) {
        EXPECT_NE(text.find(part), text.npos) << text << " lacks " << part;
      }
    }
  }
  // The fused kernels need none.
  EXPECT_EQ(vitrine::Engine::load(model, {})->summary().kernels, "fused");
}

INSTANTIATE_TEST_SUITE_P(Devices, MissingBackend,
                         testing::Values(Missing{"cpu", "libvitrine_torch.so", "--kernels fused"},
                                         Missing{"mps", "libvitrine_torch.so", "--device cpu"},
                                         Missing{"cuda", "libvitrine_cuda.so", "--device cpu"}),
                         [](const testing::TestParamInfo<Missing>& info) {
                           return std::string(info.param.device);
                         });

}  // namespace
