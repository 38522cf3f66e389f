// SPDX-License-Identifier: Apache-2.0
// A CPU run must never map libtorch_cuda: this program loads a model, steps it on both paths, and
// reads its own maps.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/support/test_data.h"
#include "vitrine/engine.h"

namespace {

std::vector<std::string> mapped_libraries() {
  std::vector<std::string> libraries;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    size_t slash = line.rfind('/');
    if (slash != std::string::npos) libraries.push_back(line.substr(slash + 1));
  }
  return libraries;
}

bool any_starts_with(const std::vector<std::string>& names, const std::string& prefix) {
  for (const std::string& name : names) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

class CpuProcess : public testing::TestWithParam<vitrine::KernelPath> {};

TEST_P(CpuProcess, DoesNotMapLibtorchCuda) {
  vitrine::EngineOptions options;
  options.kernels = GetParam();
  auto engine =
      vitrine::Engine::load(vitrine::testing_support::test_data("oracles/qwen3_moe"), options);
  const std::vector<int32_t> prompt = {1, 2, 3, 4};
  vitrine::GenerateOptions generate_options;
  generate_options.max_new_tokens = 4;
  generate_options.ignore_end_of_text = true;
  EXPECT_EQ(vitrine::generate(*engine, prompt, generate_options).tokens.size(), 4u);

  const std::vector<std::string> libraries = mapped_libraries();
  EXPECT_TRUE(any_starts_with(libraries, "libtorch_cpu.so"));  // the maps were read
  EXPECT_TRUE(any_starts_with(libraries, "libvitrine.so"));
  EXPECT_FALSE(any_starts_with(libraries, "libtorch_cuda"));
  EXPECT_FALSE(any_starts_with(libraries, "libc10_cuda"));
  EXPECT_FALSE(any_starts_with(libraries, "libvitrine_cuda"));
}

INSTANTIATE_TEST_SUITE_P(Paths, CpuProcess,
                         testing::Values(vitrine::KernelPath::kFused,
                                         vitrine::KernelPath::kReference));

}  // namespace
