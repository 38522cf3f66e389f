// SPDX-License-Identifier: Apache-2.0
// Attention over a codec's tiles, of the AVX-512 table.
#include "../tile_walk.h"
#include "avx512.h"
#include "lanes.h"

namespace vitrine::kernels::avx512 {

void attend_tiles(const KvView& kv, const AttentionSpan& span) {
  kernels::attend_tiles<IntegerLanes>(kv, span);
}

}  // namespace vitrine::kernels::avx512
