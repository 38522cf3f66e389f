// SPDX-License-Identifier: Apache-2.0
// The tables, and which of them this machine can run. Compiled without instruction-set flags.
#include "cpu_features.h"
#include "cpu_kernels.h"
#include "portable/portable.h"
#if defined(VITRINE_KERNELS_X86)
#include "avx2/avx2.h"
#include "avx512/avx512.h"
#endif

namespace vitrine::kernels {

namespace {

constexpr NamedKvKernels kPortableKv[] = {
    {"f32",
     {portable::kv_write_f32, portable::attend_f32, portable::write_latent_f32,
      portable::attend_latent_f32}},
    {"f16",
     {portable::kv_write_f16, portable::attend_f16, portable::write_latent_f16,
      portable::attend_latent_f16}},
    {"bf16",
     {portable::kv_write_bf16, portable::attend_bf16, portable::write_latent_bf16,
      portable::attend_latent_bf16}},
    {"i16",
     {portable::kv_write_i16, portable::attend_i16, portable::write_latent_i16,
      portable::attend_latent_i16}},
};

}  // namespace

const CpuKernels& portable_kernels() {
  static constexpr CpuKernels kTable = {
      .isa = "portable",
      .rms_norm = portable::rms_norm,
      .mean_square = portable::mean_square,
      .quantize_row = portable::quantize_row,
      .quantize_whole_row = portable::quantize_whole_row,
      .linear = portable::linear,
      .gate_up = portable::gate_up,
      .apply_gating = portable::apply_gating,
      .soft_cap = portable::soft_cap,
      .embed_row = portable::embed_row,
      .widen_row = portable::widen_row,
      .rope = portable::rope,
      .kv = kPortableKv,
      .attend_tiles = portable::attend_tiles,
      .router_top_k = portable::router_top_k,
      .route_weights = portable::route_weights,
      .combine = portable::combine,
      .add_scaled = portable::add_scaled,
      .multiply = portable::multiply,
      .sigmoid = portable::sigmoid,
      .head_block = portable::head_block,
      .head_merge = portable::head_merge,
      .read_lines = portable::read_lines,
      .pack_blocks = pack_blocks,
      .pack_words = pack_words,
  };
  return kTable;
}

#if defined(VITRINE_KERNELS_X86)

namespace {

constexpr NamedKvKernels kAvx512Kv[] = {
    {"f32",
     {portable::kv_write_f32, avx512::attend_f32, portable::write_latent_f32,
      avx512::attend_latent_f32}},
    {"f16",
     {portable::kv_write_f16, avx512::attend_f16, portable::write_latent_f16,
      avx512::attend_latent_f16}},
    {"bf16",
     {portable::kv_write_bf16, avx512::attend_bf16, portable::write_latent_bf16,
      avx512::attend_latent_bf16}},
    {"i16",
     {avx512::kv_write_i16, avx512::attend_i16, portable::write_latent_i16,
      avx512::attend_latent_i16}},
};

constexpr CpuKernels kAvx512Table = {
    .isa = "avx512",
    .rms_norm = avx512::rms_norm,
    .mean_square = avx512::mean_square,
    .quantize_row = avx512::quantize_row,
    .quantize_whole_row = avx512::quantize_whole_row,
    .linear = avx512::linear,
    .gate_up = avx512::gate_up,
    .apply_gating = avx512::apply_gating,
    .soft_cap = avx512::soft_cap,
    .embed_row = avx512::embed_row,
    .widen_row = avx512::widen_row,
    .rope = avx512::rope,
    .kv = kAvx512Kv,
    .attend_tiles = avx512::attend_tiles,
    .router_top_k = avx512::router_top_k,
    .route_weights = avx512::route_weights,
    .combine = avx512::combine,
    .add_scaled = avx512::add_scaled,
    .multiply = avx512::multiply,
    .sigmoid = avx512::sigmoid,
    .head_block = avx512::head_block,
    .head_merge = portable::head_merge,
    .read_lines = avx512::read_lines,
    .pack_blocks = avx512::pack_blocks,
    .pack_words = avx512::pack_words,
};

/// The table, or null where this processor lacks what its instruction set asks for.
const CpuKernels* where_it_runs(const CpuKernels& table) {
  for (const TableNeeds& needs : kTableNeeds) {
    if (needs.isa == table.isa) return (needs.features & ~cpu_features()) == 0 ? &table : nullptr;
  }
  return nullptr;
}

}  // namespace

const CpuKernels* avx512_kernels() {
  static const CpuKernels* const kRuns = where_it_runs(kAvx512Table);
  return kRuns;
}

namespace {

constexpr CpuKernels with_amx(CpuKernels table) {
  table.isa = "avx512_amx";
  table.linear = avx512::linear_amx;
  table.gate_up = avx512::gate_up_amx;
  return table;
}

}  // namespace

const CpuKernels* avx512_amx_kernels() {
  static constexpr CpuKernels kTable = with_amx(kAvx512Table);
  static const CpuKernels* const kRuns = where_it_runs(kTable);
  return kRuns;
}

namespace {

constexpr NamedKvKernels kAvx2Kv[] = {
    {"f32",
     {portable::kv_write_f32, avx2::attend_f32, portable::write_latent_f32,
      avx2::attend_latent_f32}},
    {"f16",
     {portable::kv_write_f16, avx2::attend_f16, portable::write_latent_f16,
      avx2::attend_latent_f16}},
    {"bf16",
     {portable::kv_write_bf16, avx2::attend_bf16, portable::write_latent_bf16,
      avx2::attend_latent_bf16}},
    {"i16",
     {avx2::kv_write_i16, avx2::attend_i16, portable::write_latent_i16, avx2::attend_latent_i16}},
};

constexpr CpuKernels kAvx2Table = {
    .isa = "avx2",
    .rms_norm = avx2::rms_norm,
    .mean_square = avx2::mean_square,
    .quantize_row = avx2::quantize_row,
    .quantize_whole_row = avx2::quantize_whole_row,
    .linear = avx2::linear,
    .gate_up = avx2::gate_up,
    .apply_gating = avx2::apply_gating,
    .soft_cap = avx2::soft_cap,
    .embed_row = avx2::embed_row,
    .widen_row = avx2::widen_row,
    .rope = avx2::rope,
    .kv = kAvx2Kv,
    .attend_tiles = avx2::attend_tiles,
    .router_top_k = avx2::router_top_k,
    .route_weights = avx2::route_weights,
    .combine = avx2::combine,
    .add_scaled = avx2::add_scaled,
    .multiply = avx2::multiply,
    .sigmoid = avx2::sigmoid,
    .head_block = avx2::head_block,
    .head_merge = portable::head_merge,
    .read_lines = avx2::read_lines,
    .pack_blocks = avx2::pack_blocks,
    .pack_words = pack_words,
};

constexpr CpuKernels with_avx_vnni(CpuKernels table) {
  table.isa = "avx2_vnni";
  table.linear = avx2::linear_vnni;
  table.gate_up = avx2::gate_up_vnni;
  return table;
}

}  // namespace

const CpuKernels* avx2_kernels() {
  static const CpuKernels* const kRuns = where_it_runs(kAvx2Table);
  return kRuns;
}

const CpuKernels* avx2_vnni_kernels() {
  static constexpr CpuKernels kTable = with_avx_vnni(kAvx2Table);
  static const CpuKernels* const kRuns = where_it_runs(kTable);
  return kRuns;
}

#else

const CpuKernels* avx512_amx_kernels() { return nullptr; }
const CpuKernels* avx512_kernels() { return nullptr; }
const CpuKernels* avx2_kernels() { return nullptr; }
const CpuKernels* avx2_vnni_kernels() { return nullptr; }

#endif

std::span<const CpuKernels* const> cpu_kernel_tables() {
  static const CpuKernels* kTables[5];
  static const size_t kCount = [] {
    size_t count = 0;
    for (const CpuKernels* table : {avx512_amx_kernels(), avx512_kernels(), avx2_vnni_kernels(),
                                    avx2_kernels(), &portable_kernels()}) {
      if (table != nullptr) kTables[count++] = table;
    }
    return count;
  }();
  return {kTables, kCount};
}

}  // namespace vitrine::kernels
