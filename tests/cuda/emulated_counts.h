// SPDX-License-Identifier: Apache-2.0
// What the emulated libvitrine_cuda.so beside a test counts.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>

namespace vitrine::testing {

template <typename Count>
Count emulated_count(const char* name) {
  void* library = dlopen("libvitrine_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  auto count = reinterpret_cast<Count (*)()>(dlsym(library, name));
  if (count == nullptr) throw std::runtime_error("no emulated backend is loaded");
  return count();
}

/// Bytes that the emulated device sent back so far.
inline size_t bytes_to_host() { return emulated_count<size_t>("vitrine_emulated_bytes_to_host"); }

/// Steps that the emulated device started so far.
inline int64_t steps_started() { return emulated_count<int64_t>("vitrine_emulated_steps"); }

}  // namespace vitrine::testing
