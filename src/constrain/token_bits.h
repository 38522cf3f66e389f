// SPDX-License-Identifier: Apache-2.0
// Private to the room: masks of tokens, a bit for each id.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace vitrine::constrain {

inline void set_bit(std::span<uint32_t> words, int32_t id) {
  words[static_cast<size_t>(id) / 32] |= 1U << (id % 32);
}

}  // namespace vitrine::constrain
