// SPDX-License-Identifier: Apache-2.0
// The CUDA backend of the reference path. That path is ATen alone, so what this library brings is
// libtorch_cuda, which registers ATen's CUDA operators as it is loaded.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>

#include <string>

namespace {

// Why there is no device, where the driver says so. c10 would print it.
class KeepWarning : public c10::WarningHandler {
 public:
  void process(const c10::Warning& warning) override { text = warning.msg(); }
  std::string text;
};

}  // namespace

/// How many CUDA devices this process may use; 0 without a driver. Then `problem` points to what
/// the CUDA runtime says, until the next call from this thread: empty where it says nothing. Never
/// throws and prints nothing.
extern "C" __attribute__((visibility("default"))) int vitrine_cuda_device_count(
    const char** problem) noexcept {
  thread_local KeepWarning handler;
  handler.text.clear();
  const c10::WarningUtils::WarningHandlerGuard guard(&handler);
  const int count = static_cast<int>(c10::cuda::device_count());
  *problem = handler.text.c_str();
  return count;
}
