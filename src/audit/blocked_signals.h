// SPDX-License-Identifier: Apache-2.0
// The library's threads leave the host's signals alone.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace vitrine::audit {

/// No signal is delivered to the threads started during its life: a guest's thread does not run the
/// host's handlers, and a file size limit becomes an error of write().
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace vitrine::audit
