// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and the signals that end a process: the command that runs sees to it that it ends well.
#pragma once

#include <atomic>
#include <string>

#include "vitrine/core.h"

namespace cli {

/// From now on SIGINT, SIGTERM and SIGHUP only set a flag; `restarts`: calls that wait go on
/// waiting.
void catch_interrupts(bool restarts = true);
/// Signals end the process at once again: nothing is left to finish. One that has arrived throws
/// Interrupted with `message`.
void release_interrupts(const char* message);
/// The signal that arrived, or 0. Of several one that is no SIGINT.
int interrupt_signal();
/// Raised while one has arrived: it ends what the library computes (EngineOptions::cancelled).
const std::atomic<bool>& interrupt_flag();
/// Forgets a SIGINT that was dealt with.
void clear_interrupt();

/// Where a signal ended a command, and what it says of that.
struct Interrupted : vitrine::Error {
  explicit Interrupted(const std::string& message)
      : vitrine::Error(vitrine::ErrorKind::kCancelled, message) {}
};
/// Throws it where a signal has arrived.
void stop_if_interrupted(const char* message);

}  // namespace cli
