// SPDX-License-Identifier: Apache-2.0
// Whether a test takes all of its sweep or a sample of it (tests/CMakeLists.txt, LONG).
#pragma once

#include <cstdlib>

namespace vitrine::testing_support {

inline bool is_long_run() {
  const char* value = std::getenv("VITRINE_LONG");
  return value != nullptr && *value != '\0';
}

/// `sample`, or in a long run `all`.
template <class T>
T sample_or_all(T sample, T all) {
  return is_long_run() ? all : sample;
}

}  // namespace vitrine::testing_support
