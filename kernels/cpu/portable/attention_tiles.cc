// SPDX-License-Identifier: Apache-2.0
// Attention over a codec's tiles, of the portable table.
#include "../tile_walk.h"
#include "lanes.h"
#include "portable.h"

namespace vitrine::kernels::portable {

void attend_tiles(const KvView& kv, const AttentionSpan& span) {
  kernels::attend_tiles<IntegerLanes>(kv, span);
}

}  // namespace vitrine::kernels::portable
