// SPDX-License-Identifier: Apache-2.0
// What each table of kernels asks of a processor, and what this one has. The compiler's options of
// a table's files (CMakeLists.txt) allow no more; a test reads their object code.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace vitrine::kernels {

/// Bits of a set of features. Every processor with AVX2 has all up to SSE4.2 and POPCNT too.
enum CpuFeature : uint32_t {
  kAvx2 = 1U << 0,
  kFma = 1U << 1,
  kF16c = 1U << 2,
  kAvxVnni = 1U << 3,
  kAvx512F = 1U << 4,
  kAvx512Bw = 1U << 5,
  kAvx512Dq = 1U << 6,
  kAvx512Vl = 1U << 7,
  kAvx512Vnni = 1U << 8,
  kAmxTile = 1U << 9,  // and the operating system grants the tile registers
  kAmxInt8 = 1U << 10,
};

struct TableNeeds {
  std::string_view isa;
  uint32_t features;
};

constexpr uint32_t kAvx2Needs = kAvx2 | kFma | kF16c;
constexpr uint32_t kAvx512Needs =
    kAvx2Needs | kAvx512F | kAvx512Bw | kAvx512Dq | kAvx512Vl | kAvx512Vnni;

/// The needs of every table, the fastest first.
constexpr TableNeeds kTableNeeds[] = {
    {"avx512_amx", kAvx512Needs | kAmxTile | kAmxInt8},
    {"avx512", kAvx512Needs},
    {"avx2_vnni", kAvx2Needs | kAvxVnni},
    {"avx2", kAvx2Needs},
    {"portable", 0},
};

/// What this processor has. The first call asks the operating system for the tile registers, where
/// the processor has them.
uint32_t cpu_features();

/// The first table that runs on a processor with these.
std::string_view best_table(uint32_t features);

/// "AVX512-BW, AVX512-VNNI": those of a set.
std::string feature_names(uint32_t features);

/// "AVX-512 without VNNI is not used" where a processor has a part of what that table asks for;
/// else empty.
std::string unused_features(uint32_t features);

}  // namespace vitrine::kernels
