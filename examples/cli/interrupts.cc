// SPDX-License-Identifier: Apache-2.0
#include "interrupts.h"

#include <csignal>

namespace cli {

namespace {

std::atomic<int> caught_signal{0};
alignas(64) std::atomic<bool> is_interrupted{false};  // every thread of a step looks at it
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void note_signal(int signal) {
  int none = 0;
  if (signal == SIGINT) {
    caught_signal.compare_exchange_strong(none, signal);
  } else {
    caught_signal.store(signal);
  }
  is_interrupted.store(true);
}

}  // namespace

void catch_interrupts(bool restarts) {
  struct sigaction action = {};
  action.sa_handler = note_signal;
  action.sa_flags = restarts ? SA_RESTART : 0;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  struct sigaction before = {};
  sigaction(SIGHUP, nullptr, &before);
  if (before.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);  // nohup
}

void release_interrupts(const char* message) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before = {};
    sigaction(signal, nullptr, &before);
    if (before.sa_handler == note_signal) std::signal(signal, SIG_DFL);
  }
  stop_if_interrupted(message);
}

int interrupt_signal() { return caught_signal.load(); }

const std::atomic<bool>& interrupt_flag() { return is_interrupted; }

void clear_interrupt() {
  int dealt_with = SIGINT;
  if (!caught_signal.compare_exchange_strong(dealt_with, 0)) return;
  is_interrupted.store(false);
  if (caught_signal.load() != 0) is_interrupted.store(true);  // another one came meanwhile
}

void stop_if_interrupted(const char* message) {
  if (interrupt_signal() != 0) throw Interrupted(message);
}

}  // namespace cli
