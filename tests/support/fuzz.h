// SPDX-License-Identifier: Apache-2.0
// The loop that every fuzz program runs.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "vitrine/core.h"

namespace vitrine::testing {

/// Throws where a refusal is not one line that a user can act on.
inline void check_message(const Error& error) {
  const std::string_view message = error.what();
  if (message.empty() || message.find('\n') != message.npos ||
      error.kind() == ErrorKind::kInternal) {
    throw std::runtime_error("bad message: " + std::string(message));
  }
}

struct FuzzTarget {
  /// One iteration, from 0. True: nothing was refused; none: there was nothing to try. Throws what
  /// should not have happened.
  std::function<std::optional<bool>(long)> run;
  /// Inputs that are healthy for certain: of the others, too, some must be read.
  long num_healthy = 0;
  bool may_refuse = true;  // false: every input has to be read
};

/// PROGRAM SECONDS [SEED]: the exit code. `make` gets the seed; the same one repeats an iteration.
/// VITRINE_FUZZ_SECONDS in the environment comes before the argument.
inline int run_fuzz(int argc, char** argv, const char* program, const char* inputs,
                    const std::function<FuzzTarget(uint64_t)>& make) {
  const char* set = std::getenv("VITRINE_FUZZ_SECONDS");
  const double seconds = set != nullptr ? std::atof(set) : argc > 1 ? std::atof(argv[1]) : 0.0;
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1;
  if (seconds <= 0.0) {
    std::fprintf(stderr, "usage: %s SECONDS [SEED]\n", program);
    return 2;
  }
  long clean = 0, refused = 0, iteration = 0, num_healthy = 0;
  bool may_refuse = true;
  try {
    const FuzzTarget target = make(seed);
    num_healthy = target.num_healthy;
    may_refuse = target.may_refuse;
    const auto start = std::chrono::steady_clock::now();
    for (;
         std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() < seconds;
         ++iteration) {
      const std::optional<bool> is_clean = target.run(iteration);
      if (is_clean) ++(*is_clean ? clean : refused);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "seed %llu, iteration %ld: %s\n", static_cast<unsigned long long>(seed),
                 iteration, error.what());
    return 1;
  }
  std::printf("%ld %s: %ld read, %ld refused with one line\n", iteration, inputs, clean, refused);
  // A run of one kind only would test nothing, where there are two.
  return clean > num_healthy && (refused > 0) == may_refuse ? 0 : 1;
}

}  // namespace vitrine::testing
