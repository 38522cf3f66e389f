// SPDX-License-Identifier: Apache-2.0
// How long this thread had a processor.
#pragma once

#include <ctime>

namespace vitrine::serve {

/// Returns the processor time of the calling thread, in seconds.
inline double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace vitrine::serve
