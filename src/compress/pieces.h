// SPDX-License-Identifier: Apache-2.0
// Private to the room: work that threads share, whose pieces have nothing to do with each other.
#pragma once

#include <cstdint>
#include <functional>

namespace vitrine::compress {

/// Calls `run` with each of [0, count) on so many threads, and returns when all have ended. Which
/// thread takes a piece must not matter. The first exception of a piece ends the work and comes
/// out.
void run_pieces(int threads, int64_t count, const std::function<void(int64_t piece)>& run);

}  // namespace vitrine::compress
