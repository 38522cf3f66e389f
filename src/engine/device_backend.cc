// SPDX-License-Identifier: Apache-2.0
#include "engine/device_backend.h"

#include <dlfcn.h>

#include <mutex>
#include <string>

#include "core/shared_library.h"
#include "engine/run/device_model.h"

namespace vitrine::engine {

namespace {

// The message of a device that is not here is one line, whatever the CUDA runtime says.
std::string one_line(std::string text) {
  text = text.substr(0, text.find_first_of("\r\n"));
  return text.empty() ? "" : " (" + text + ")";
}

int cuda_device_count(std::string& problem) {
  static std::once_flag once;
  static int (*count)(const char**) = nullptr;
  static std::string reason;
  std::call_once(once, [] {
    count = reinterpret_cast<int (*)(const char**)>(find_library_symbol(
        "libvitrine_cuda.so", "vitrine_cuda_device_count", RTLD_NOW | RTLD_GLOBAL, reason));
  });
  if (count == nullptr) {
    throw Error(ErrorKind::kUnavailable,
                "device 'cuda' needs libvitrine_cuda.so, which could not be loaded (" + reason +
                    "); build it with scripts/build all where there is a CUDA 13 toolkit, or use "
                    "--device cpu");
  }
  const char* text = "";
  const int devices = count(&text);
  problem = one_line(text);
  return devices;
}

// A function of the backend's fused path. Throws kUnavailable where it or the device is not here.
void* find_fused(const Device& device, const char* name) {
  require_cuda_device(device);  // ATen's own CUDA is not needed, so it is not started
  std::string reason;
  void* found = find_library_symbol("libvitrine_cuda.so", name, RTLD_NOW | RTLD_GLOBAL, reason);
  if (found != nullptr) return found;
  throw Error(ErrorKind::kUnavailable,
              "device '" + device.name() +
                  "' has no fused kernels in this build, which was made without nvcc (" + reason +
                  "); use --kernels reference");
}

}  // namespace

void require_cuda_device(const Device& device) {
  std::string problem;
  const int count = cuda_device_count(problem);
  if (device.index < count) return;
  throw Error(ErrorKind::kUnavailable,
              "device '" + device.name() + "' is not here: " + std::to_string(count) +
                  " CUDA devices were found" + problem + "; use --device cpu");
}

std::unique_ptr<DeviceModel> make_device_model(const Device& device,
                                               const DeviceModelInputs& inputs) {
  const auto make = reinterpret_cast<DeviceModel* (*)(const DeviceModelInputs&, int)>(
      find_fused(device, "vitrine_cuda_make_model"));
  return std::unique_ptr<DeviceModel>(make(inputs, device.index));
}

std::unique_ptr<DeviceJoint> make_device_joint(const Device& device, const DeviceJointSpec& spec,
                                               int64_t vocab) {
  const auto make = reinterpret_cast<DeviceJoint* (*)(const DeviceJointSpec&, int64_t, int)>(
      find_fused(device, "vitrine_cuda_make_joint"));
  return std::unique_ptr<DeviceJoint>(make(spec, vocab, device.index));
}

}  // namespace vitrine::engine
