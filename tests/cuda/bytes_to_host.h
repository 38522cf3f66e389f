// What the emulated libvitrine_cuda.so beside a test counts.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <stdexcept>

namespace vitrine::testing {

/// Bytes that the emulated device sent back so far.
inline size_t bytes_to_host() {
  void* library = dlopen("libvitrine_cuda.so", RTLD_NOW | RTLD_NOLOAD);
  auto count = reinterpret_cast<size_t (*)()>(dlsym(library, "vitrine_emulated_bytes_to_host"));
  if (count == nullptr) throw std::runtime_error("no emulated backend is loaded");
  return count();
}

}  // namespace vitrine::testing
