// SPDX-License-Identifier: Apache-2.0
// A second flow of control on a stack of its own, entered and left by hand: one thread of a GPU
// block in the emulator. Not thread-safe.
#pragma once

#include <cstddef>

namespace vitrine::kernels::cuda::emulator {

/// A stack with a guard page below it, reused by one fiber after the other.
class Fiber {
 public:
  Fiber();
  Fiber(const Fiber&) = delete;
  ~Fiber();

  /// Next resume() begins `entry`, which never returns: it leaves by suspend() for good. What the
  /// stack held is forgotten, destructors do not run.
  void prepare(void (*entry)());
  /// From outside: runs until the fiber suspends.
  void resume();
  /// From inside: back to who resumed.
  void suspend();
  /// From inside, first thing in `entry` (the sanitizer has to know that the stack is another one).
  void begin();

 private:
  void note_leaving(void** own, const void* bottom, size_t size);
  void note_arrived(void* own, bool is_inside);

  char* memory_ = nullptr;  // guard page, then the stack
  void* inside_ = nullptr;  // stack pointer or context
  void* outside_ = nullptr;
  // AddressSanitizer's: the fake stacks, and where the resumer's stack lies.
  void* fake_inside_ = nullptr;
  void* fake_outside_ = nullptr;
  const void* outside_bottom_ = nullptr;
  size_t outside_size_ = 0;
};

}  // namespace vitrine::kernels::cuda::emulator
