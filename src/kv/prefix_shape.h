// SPDX-License-Identifier: Apache-2.0
// What a prefix is without its bytes: enough to make it again in another pool.
#pragma once

#include <cstdint>
#include <vector>

namespace vitrine::kv {

struct PrefixShape {
  std::vector<int32_t> history;  // its tokens
  int32_t adapter = -1;
  // Blocks of layers that see all positions count from here on; those before are another prefix's.
  int64_t first_block = 0;
  std::vector<uint8_t> holds_window;   // [blocks] whether layers within a window have this one
  std::vector<int64_t> window_points;  // ascending lengths whose windows these hold
  int64_t state_length = 0;            // positions that its state has taken in; 0: it has none

  int64_t length() const { return static_cast<int64_t>(history.size()); }
};

}  // namespace vitrine::kv
