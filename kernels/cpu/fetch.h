// SPDX-License-Identifier: Apache-2.0
// Fetching what is read later. Internal linkage: each file has its own copy.
#pragma once

namespace vitrine::kernels {

/// A line into the second-level cache. Processors fetch ahead within a page only, and nothing that
/// another loop will read.
__attribute__((always_inline)) static inline void fetch(const void* line) {
  __builtin_prefetch(line, 0, 2);
}

}  // namespace vitrine::kernels
