// SPDX-License-Identifier: Apache-2.0
// A GPU's blocks and warps on one host thread, so that kernels are tested where there is no GPU.
//
// Every thread of a block is a fiber that runs until it meets others (barrier, shuffle, tensor
// core) or returns; which warps run ahead of the others and in which order lanes run is drawn anew
// at each turn, from a seed, so that a result that hangs on a missing barrier differs from seed to
// seed. Found and reported as the launch's status:
// threads that wait for others that returned or wait elsewhere, a return with copies under way,
// misaligned vectors, shared memory beyond what was launched. Shared memory and device arrays begin
// as NaNs (all bits set). Separate heap memory for each array and each block's shared memory lets
// AddressSanitizer find what is out of range.
//
// What it cannot show: races inside one stretch between two meetings, the order in which a GPU's
// tensor cores add, anything about time. Launches run at once, in their order, whatever the stream;
// a stream that is captured records instead. One host thread only.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <new>
#include <vector>

#include "kernels/cuda/device.h"

namespace vitrine::kernels::cuda::emulator {

/// Where the order of blocks and threads begins from.
void set_seed(uint64_t seed);
/// Launches that ran since the process began, replayed ones too.
int64_t launch_count();

/// What a kernel's fault is reported as (a real runtime says cudaErrorLaunchFailure).
inline constexpr int kFault = 719;

/// Launches recorded from a stream, as a CUDA graph: arguments keep their values.
class Graph {
 public:
  /// Launches on `stream` are recorded from here on, not run, until end_capture().
  void begin_capture(Stream stream);
  void end_capture();
  /// Runs them in order; the first status that is not ok ends it.
  Status replay() const;
  int64_t num_kernels() const { return static_cast<int64_t>(nodes_.size()); }

 private:
  friend Status vitrine::kernels::cuda::host::run(const host::Launch& launch,
                                                  std::function<void()> thread);
  struct Node {
    host::Launch launch;
    std::function<void()> thread;
  };
  std::vector<Node> nodes_;
};

/// `bytes` on the heap at an address that is a multiple of 256, as from cudaMalloc, and not a byte
/// more.
inline void* allocate_array(size_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 256, bytes) != 0) throw std::bad_alloc();
  return memory;
}
inline void free_array(void* memory) { std::free(memory); }

}  // namespace vitrine::kernels::cuda::emulator

#include "tests/cuda/device_array.h"
