// SPDX-License-Identifier: Apache-2.0
// The threads of one engine, or of several that run by turns.
#pragma once

#include "engine/occupant.h"
#include "engine/run/worker_pool.h"

namespace vitrine::engine {

/// Whoever uses the pool is the occupant: two engines with the same threads are used by one thread
/// at a time, as one engine is.
struct EngineThreads {
  /// `threads` counts the calling thread.
  explicit EngineThreads(int threads) : pool(threads) {}

  Occupant occupant{"an engine"};
  WorkerPool pool;
};

}  // namespace vitrine::engine
