// SPDX-License-Identifier: Apache-2.0
// Checks of the emulated kernels alone that no table is missing from the tests beside this one.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"

namespace vitrine::kernels {
namespace {

TEST(EmulatedTables, AreAllThere) {
  if (avx2_kernels() == nullptr) GTEST_SKIP() << "what emulates them needs AVX2";
  std::vector<std::string> names;
  for (const CpuKernels* table : cpu_kernel_tables()) names.emplace_back(table->isa);
  EXPECT_EQ(names,
            (std::vector<std::string>{"avx512_amx", "avx512", "avx2_vnni", "avx2", "portable"}));
}

}  // namespace
}  // namespace vitrine::kernels
