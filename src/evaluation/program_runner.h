// SPDX-License-Identifier: Apache-2.0
// Private to the library: runs a Python program that a model wrote.
#pragma once

#include <string>

#include "evaluation/program_sandbox.h"

namespace vitrine::evaluation {

/// How a program ended.
struct ProgramResult {
  bool has_passed = false;  // it came to its end, and nothing was raised
  std::string ending;       // "passed", "AssertionError", "timed out", "killed (signal 9)", …
};

/// Runs a program in a child process that cannot reach the network, start others or change files
/// outside an empty folder of its own (enter_sandbox), and waits for its end. The program passes
/// where its last line is reached: leaving earlier (sys.exit, os._exit) does not count. Throws
/// kUnavailable where there is no Python or the system lets nothing be shut off, and kIo.
/// Thread-safe.
ProgramResult run_program(const std::string& program, const ProgramLimits& limits);

}  // namespace vitrine::evaluation
