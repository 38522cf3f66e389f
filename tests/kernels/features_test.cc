// SPDX-License-Identifier: Apache-2.0
// Which table a processor gets, by what it has.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/cpu_kernels.h"

namespace vitrine::kernels {
namespace {

constexpr uint32_t kFirstAvx512 = kAvx2Needs | kAvx512F | kAvx512Bw | kAvx512Dq | kAvx512Vl;

struct Processor {
  const char* name;
  uint32_t features;
  const char* isa;
  const char* unused;
};
constexpr Processor kProcessors[] = {
    {"Nehalem", 0, "portable", ""},
    {"Sandy Bridge, without AVX2", kF16c, "portable", ""},
    {"Haswell", kAvx2Needs, "avx2", ""},
    {"Zen 3", kAvx2Needs, "avx2", ""},
    {"Alder Lake", kAvx2Needs | kAvxVnni, "avx2_vnni", ""},
    {"Xeon Phi", kAvx2Needs | kAvx512F, "avx2", "AVX-512 without BW, DQ, VL, VNNI is not used"},
    {"Skylake-X", kFirstAvx512, "avx2", "AVX-512 without VNNI is not used"},
    {"Cascade Lake", kFirstAvx512 | kAvx512Vnni, "avx512", ""},
    {"Ice Lake, Tiger Lake, Rocket Lake", kFirstAvx512 | kAvx512Vnni, "avx512", ""},
    {"Zen 4", kFirstAvx512 | kAvx512Vnni, "avx512", ""},
    {"Zen 5", kFirstAvx512 | kAvx512Vnni | kAvxVnni, "avx512", ""},
    {"Sapphire Rapids", kFirstAvx512 | kAvx512Vnni | kAvxVnni | kAmxTile | kAmxInt8, "avx512_amx",
     ""},
    {"Sapphire Rapids whose system keeps the tiles",
     kFirstAvx512 | kAvx512Vnni | kAvxVnni | kAmxInt8, "avx512", ""},
};

TEST(Features, ChooseTheTable) {
  for (const Processor& processor : kProcessors) {
    EXPECT_EQ(best_table(processor.features), processor.isa) << processor.name;
    EXPECT_EQ(unused_features(processor.features), processor.unused) << processor.name;
  }
}

TEST(Features, AreThoseOfTheTablesOfThisMachine) {
  std::vector<std::string> needed, found;
  for (const TableNeeds& table : kTableNeeds) {
    if ((table.features & ~cpu_features()) == 0) needed.emplace_back(table.isa);
  }
  for (const CpuKernels* table : cpu_kernel_tables()) found.emplace_back(table->isa);
  EXPECT_EQ(found, needed);
  EXPECT_EQ(found.front(), best_table(cpu_features()));
}

TEST(Features, HaveNames) {
  EXPECT_EQ(feature_names(0), "");
  EXPECT_EQ(feature_names(kAvx2Needs), "AVX2, FMA, F16C");
  EXPECT_EQ(feature_names(kAvx512Vnni | kAvx512Bw), "AVX512-BW, AVX512-VNNI");
}

}  // namespace
}  // namespace vitrine::kernels
