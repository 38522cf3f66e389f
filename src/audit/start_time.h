// SPDX-License-Identifier: Apache-2.0
// When a run began, by the system's and the monotonic clock, and which build made it.
#pragma once

#include <cstdint>
#include <string>

namespace vitrine::audit {

/// Stands at the head of every log.
struct LogStart {
  uint64_t unix_ns = 0;
  uint64_t monotonic_ns = 0;  ///< 0: not known
  std::string engine_build;
};

/// Returns this moment and this library's build.
LogStart start_now();
/// Returns nanoseconds since 1970, by the system's clock.
uint64_t unix_nanoseconds();

}  // namespace vitrine::audit
