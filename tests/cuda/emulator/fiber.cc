// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/emulator/fiber.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <cstdint>
#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__) && !defined(VITRINE_EMULATOR_UCONTEXT)
#define VITRINE_FIBER_ASM 1
// Saves what a call must preserve on the old stack, stores its pointer, and does the reverse.
extern "C" void vitrine_emulator_switch(void** save, void* load);
asm(R"(
.text
.p2align 4
.globl vitrine_emulator_switch
.hidden vitrine_emulator_switch
.type vitrine_emulator_switch, @function
vitrine_emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size vitrine_emulator_switch, . - vitrine_emulator_switch
)");
#endif

namespace vitrine::kernels::cuda::emulator {
namespace {

constexpr size_t kGuard = 4096;
constexpr size_t kStack = 192 * 1024;  // a kernel's frames; AddressSanitizer makes them larger

}  // namespace

Fiber::Fiber() {
  void* memory = mmap(nullptr, kGuard + kStack, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_ = static_cast<char*>(memory);
  mprotect(memory_, kGuard, PROT_NONE);
#if !defined(VITRINE_FIBER_ASM)
  inside_ = new ucontext_t;
  outside_ = new ucontext_t;
#endif
}

Fiber::~Fiber() {
#if !defined(VITRINE_FIBER_ASM)
  delete static_cast<ucontext_t*>(inside_);
  delete static_cast<ucontext_t*>(outside_);
#endif
  munmap(memory_, kGuard + kStack);
}

void Fiber::prepare(void (*entry)()) {
  char* stack = memory_ + kGuard;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(stack, kStack);  // of frames that were never left
  fake_inside_ = nullptr;
#endif
#if defined(VITRINE_FIBER_ASM)
  auto* top = reinterpret_cast<uint64_t*>(stack + kStack);
  *--top = 0;  // where a return address would be: the entry finds its stack aligned as by a call
  *--top = reinterpret_cast<uint64_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;  // the registers that the switch pops
  inside_ = top;
#else
  auto* context = static_cast<ucontext_t*>(inside_);
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStack;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
#endif
}

void Fiber::note_leaving([[maybe_unused]] void** own, [[maybe_unused]] const void* bottom,
                         [[maybe_unused]] size_t size) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(own, bottom, size);
#endif
}

void Fiber::note_arrived([[maybe_unused]] void* own, [[maybe_unused]] bool is_inside) {
#if defined(__SANITIZE_ADDRESS__)
  if (is_inside) {
    __sanitizer_finish_switch_fiber(own, &outside_bottom_, &outside_size_);
  } else {
    __sanitizer_finish_switch_fiber(own, nullptr, nullptr);
  }
#endif
}

void Fiber::begin() { note_arrived(nullptr, true); }

void Fiber::resume() {
  note_leaving(&fake_outside_, memory_ + kGuard, kStack);
#if defined(VITRINE_FIBER_ASM)
  vitrine_emulator_switch(&outside_, inside_);
#else
  swapcontext(static_cast<ucontext_t*>(outside_), static_cast<ucontext_t*>(inside_));
#endif
  note_arrived(fake_outside_, false);
}

void Fiber::suspend() {
  note_leaving(&fake_inside_, outside_bottom_, outside_size_);
#if defined(VITRINE_FIBER_ASM)
  vitrine_emulator_switch(&inside_, outside_);
#else
  swapcontext(static_cast<ucontext_t*>(inside_), static_cast<ucontext_t*>(outside_));
#endif
  note_arrived(fake_inside_, true);
}

}  // namespace vitrine::kernels::cuda::emulator
