// SPDX-License-Identifier: Apache-2.0
// Put before llama.cpp's CPU kernels: GCC 12's AMX intrinsics do not tell the optimizer what memory
// they read (GCC 13's do), so that it drops the writes before them and the program dies of an
// illegal instruction. The same instructions, with the memory named.
#pragma once

#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__)
#include <immintrin.h>

#define _tile_loadconfig(config) \
  __asm__ volatile("ldtilecfg\t%0" ::"m"(*(const char(*)[64])(config)) : "memory")
#undef _tile_loadd
#define PEERS_TILE_LOAD(tile, base, stride)                        \
  __asm__ volatile("tileloadd\t(%0,%1,1), %%tmm" #tile             \
                   :                                               \
                   : "r"((const void*)(base)), "r"((long)(stride)) \
                   : "memory")
#define _tile_loadd(tile, base, stride) PEERS_TILE_LOAD(tile, base, stride)
#endif
