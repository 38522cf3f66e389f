// SPDX-License-Identifier: Apache-2.0
// Compiled without instruction-set flags.
#include "cpu_features.h"

#include <utility>
#if defined(VITRINE_KERNELS_X86) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace vitrine::kernels {

namespace {

constexpr std::string_view kAvx512Prefix = "AVX512-";
constexpr std::pair<uint32_t, std::string_view> kFeatureNames[] = {
    {kAvx2, "AVX2"},
    {kFma, "FMA"},
    {kF16c, "F16C"},
    {kAvxVnni, "AVX-VNNI"},
    {kAvx512F, "AVX512-F"},
    {kAvx512Bw, "AVX512-BW"},
    {kAvx512Dq, "AVX512-DQ"},
    {kAvx512Vl, "AVX512-VL"},
    {kAvx512Vnni, "AVX512-VNNI"},
    {kAmxTile, "AMX-TILE"},
    {kAmxInt8, "AMX-INT8"},
};

#if defined(VITRINE_KERNELS_X86)

/// Linux gives a process the tile registers only when it asks (arch_prctl, ARCH_REQ_XCOMP_PERM).
bool tile_registers_granted() {
#if defined(__linux__)
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

// The compiler's runtime also asks whether the operating system saves the wide registers.
uint32_t detect_features() {
  uint32_t features = 0;
  const auto add = [&](bool has, uint32_t feature) { features |= has ? feature : 0; };
  add(__builtin_cpu_supports("avx2"), kAvx2);
  add(__builtin_cpu_supports("fma"), kFma);
  add(__builtin_cpu_supports("f16c"), kF16c);
  add(__builtin_cpu_supports("avxvnni"), kAvxVnni);
  add(__builtin_cpu_supports("avx512f"), kAvx512F);
  add(__builtin_cpu_supports("avx512bw"), kAvx512Bw);
  add(__builtin_cpu_supports("avx512dq"), kAvx512Dq);
  add(__builtin_cpu_supports("avx512vl"), kAvx512Vl);
  add(__builtin_cpu_supports("avx512vnni"), kAvx512Vnni);
  add(__builtin_cpu_supports("amx-int8"), kAmxInt8);
  add(__builtin_cpu_supports("amx-tile") && tile_registers_granted(), kAmxTile);
  return features;
}

#else

uint32_t detect_features() { return 0; }

#endif

std::string joined_names(uint32_t features, std::string_view dropped_prefix) {
  std::string names;
  for (const auto& [feature, name] : kFeatureNames) {
    if ((features & feature) == 0) continue;
    if (!names.empty()) names += ", ";
    names += name.starts_with(dropped_prefix) ? name.substr(dropped_prefix.size()) : name;
  }
  return names;
}

}  // namespace

uint32_t cpu_features() {
  static const uint32_t kFeatures = detect_features();
  return kFeatures;
}

std::string_view best_table(uint32_t features) {
  for (const TableNeeds& table : kTableNeeds) {
    if ((table.features & ~features) == 0) return table.isa;
  }
  return "portable";
}

std::string feature_names(uint32_t features) { return joined_names(features, ""); }

std::string unused_features(uint32_t features) {
  const uint32_t missing = kAvx512Needs & ~features;
  if ((features & kAvx512F) == 0 || missing == 0) return {};
  return "AVX-512 without " + joined_names(missing, kAvx512Prefix) + " is not used";
}

}  // namespace vitrine::kernels
