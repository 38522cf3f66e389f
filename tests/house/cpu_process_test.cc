// SPDX-License-Identifier: Apache-2.0
// A process maps what it uses: none of libtorch before the reference path is asked for, and none of
// libtorch's CUDA ever where it runs on the CPU. This program loads a model, steps it on both
// paths, and reads its own maps.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/test_data.h"
#include "vitrine/engine.h"

namespace {

/// The files of libraries with that prefix that this process maps.
std::vector<std::string> mapped(const std::string& prefix) {
  std::vector<std::string> names;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t slash = line.rfind('/');
    if (slash == line.npos || !line.substr(slash + 1).starts_with(prefix)) continue;
    names.push_back(line.substr(slash + 1));
  }
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

void generate_by(vitrine::KernelPath path) {
  vitrine::EngineOptions options;
  options.kernels = path;
  auto engine =
      vitrine::Engine::load(vitrine::testing_support::test_data("oracles/qwen3_moe"), options);
  const std::vector<int32_t> prompt = {1, 2, 3, 4};
  vitrine::GenerateOptions generate_options;
  generate_options.max_new_tokens = 4;
  generate_options.ignore_end_of_text = true;
  EXPECT_EQ(vitrine::generate(*engine, prompt, generate_options).tokens.size(), 4u);
}

const std::vector<std::string> kNone;

TEST(CpuProcess, MapsLibtorchForTheReferencePathAlone) {
  generate_by(vitrine::KernelPath::kFused);
  EXPECT_FALSE(mapped("libvitrine.so").empty());  // the maps were read
  for (const char* prefix : {"libtorch", "libc10", "libvitrine_"}) {
    EXPECT_EQ(mapped(prefix), kNone);
  }
  generate_by(vitrine::KernelPath::kReference);
  EXPECT_FALSE(mapped("libtorch_cpu.so").empty());
  EXPECT_FALSE(mapped("libvitrine_torch.so").empty());
  for (const char* prefix : {"libtorch_cuda", "libc10_cuda", "libvitrine_cuda"}) {
    EXPECT_EQ(mapped(prefix), kNone);
  }
}

}  // namespace
