// SPDX-License-Identifier: Apache-2.0
// How fast the engine's threads read its weights when they do nothing else.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <span>

#include "engine/run/worker_pool.h"
#include "kernels/cpu/cpu_kernels.h"

namespace vitrine::engine {

/// Returns the bytes a second of the fastest pass over `parts`, among those that begin within
/// `seconds`, at least two; nothing where the parts do not hold a line of 64 bytes. Throws
/// kCancelled where the flag is raised (null: there is none).
std::optional<double> measure_read_bandwidth(const kernels::CpuKernels& kernel, WorkerPool& pool,
                                             std::span<const std::span<const std::byte>> parts,
                                             double seconds, const std::atomic<bool>* cancelled);

}  // namespace vitrine::engine
