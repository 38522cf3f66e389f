// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/cuda_runtime.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "backend_cuda/cuda_readback.h"

namespace vitrine::backend_cuda {

namespace {

constexpr size_t kMostPitch = 0x7fffffff;  // from row to row, in one call

// The runtime keeps a failed call's error for the next one that asks: it is taken away here, so
// that no launch is blamed for it.
Status status_of(cudaError_t error) {
  if (error == cudaSuccess) return {};
  static_cast<void>(cudaGetLastError());
  return {static_cast<int>(error), cudaGetErrorString(error)};
}

class CudaGraph final : public StepGraph {
 public:
  CudaGraph(cudaGraphExec_t executable, int64_t num_kernels)
      : executable_(executable), num_kernels_(num_kernels) {}
  ~CudaGraph() override { static_cast<void>(cudaGraphExecDestroy(executable_)); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;
  int64_t num_kernels() const override { return num_kernels_; }
  cudaGraphExec_t executable() const { return executable_; }

 private:
  cudaGraphExec_t executable_;
  int64_t num_kernels_;
};

cudaError_t count_kernels(cudaGraph_t graph, int64_t* count) {
  size_t size = 0;
  cudaError_t error = cudaGraphGetNodes(graph, nullptr, &size);
  std::vector<cudaGraphNode_t> nodes(size);
  if (error == cudaSuccess && size > 0) error = cudaGraphGetNodes(graph, nodes.data(), &size);
  for (size_t i = 0; error == cudaSuccess && i < size; ++i) {
    cudaGraphNodeType type{};
    error = cudaGraphNodeGetType(nodes[i], &type);
    if (type == cudaGraphNodeTypeKernel) ++*count;
  }
  return error;
}

// Whether the process uses a device. Choosing one begins to: it costs memory there.
bool is_in_use(int device) {
  using GetState = CUresult (*)(CUdevice, unsigned int*, int*);
  static const auto get_state = []() -> GetState {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult result{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &found,
                                                               12000, cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess
               ? reinterpret_cast<GetState>(found)
               : nullptr;
  }();
  unsigned int flags = 0;
  int is_active = 0;
  return get_state != nullptr && get_state(device, &flags, &is_active) == CUDA_SUCCESS &&
         is_active != 0;
}

// The current device is the thread's and its host's, who may have chosen another one.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    static_cast<void>(cudaGetDevice(&before_));
    if (before_ != device) static_cast<void>(cudaSetDevice(device));
    is_other_ = before_ != device && is_in_use(before_);
  }
  ~OnDevice() {
    if (is_other_) static_cast<void>(cudaSetDevice(before_));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool is_other_ = false;
};

class CudaRuntime final : public DeviceRuntime {
 public:
  explicit CudaRuntime(int device) : device_(device) {
    const OnDevice here(device_);
    try {
      for (cudaStream_t* stream : {&stream_, &copies_}) {
        check(status_of(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking)),
              "making a stream");
      }
      for (ReadbackLane& lane : lanes_) {
        for (cudaEvent_t* event : {&lane.ran, &lane.arrived}) {
          check(status_of(cudaEventCreateWithFlags(event, cudaEventDisableTiming)),
                "making an event");
        }
      }
    } catch (...) {
      destroy();
      throw;
    }
  }
  ~CudaRuntime() override {
    const OnDevice here(device_);
    destroy();
  }
  CudaRuntime(const CudaRuntime&) = delete;
  CudaRuntime& operator=(const CudaRuntime&) = delete;

  Status allocate(size_t bytes, void** memory) override {
    const OnDevice here(device_);
    return status_of(cudaMalloc(memory, bytes));
  }
  void release(void* memory) override {
    const OnDevice here(device_);
    static_cast<void>(cudaFree(memory));
  }
  Status allocate_host(size_t bytes, void** memory) override {
    const OnDevice here(device_);
    return status_of(cudaHostAlloc(memory, bytes, cudaHostAllocDefault));
  }
  void release_host(void* memory) override {
    const OnDevice here(device_);
    static_cast<void>(cudaFreeHost(memory));
  }
  Status memory_info(size_t* free, size_t* total) override {
    const OnDevice here(device_);
    return status_of(cudaMemGetInfo(free, total));
  }
  Status compute_capability(int* capability) override {
    int major = 0, minor = 0;
    cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_);
    if (error == cudaSuccess) {
      error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device_);
    }
    *capability = 10 * major + minor;
    return status_of(error);
  }
  Status most_shared_bytes(int* bytes) override {
    return status_of(
        cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_));
  }

  Stream stream() override { return stream_; }
  Status wait() override {
    const OnDevice here(device_);
    return status_of(finish_upload(stream_));
  }
  Status copy_to_device(void* to, const void* from, size_t bytes) override {
    const OnDevice here(device_);
    return status_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_));
  }
  Status start_read_back(int lane, void* to, const void* from, size_t bytes) override {
    const OnDevice here(device_);
    return status_of(start_copy_back(lanes_[lane], to, from, bytes, stream_, copies_));
  }
  Status finish_read_back(int lane) override {
    const OnDevice here(device_);
    return status_of(finish_copy_back(lanes_[lane]));
  }
  Status copy_on_device(void* to, const void* from, size_t bytes, size_t stride,
                        size_t count) override {
    const OnDevice here(device_);
    if (stride <= kMostPitch) {
      return status_of(cudaMemcpy2DAsync(to, stride, from, stride, bytes, count,
                                         cudaMemcpyDeviceToDevice, stream_));
    }
    Status status;
    for (size_t at = 0; at < count * stride && status.ok(); at += stride) {
      status = status_of(cudaMemcpyAsync(static_cast<std::byte*>(to) + at,
                                         static_cast<const std::byte*>(from) + at, bytes,
                                         cudaMemcpyDeviceToDevice, stream_));
    }
    return status;
  }
  Status clear(void* memory, size_t bytes) override {
    const OnDevice here(device_);
    return status_of(cudaMemsetAsync(memory, 0, bytes, stream_));
  }

  Status begin_capture() override {
    recording_.emplace(device_);  // what is recorded is started on this device too
    // Relaxed: a kernel may be loaded where it is first started, which is here.
    const Status status = status_of(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    if (!status.ok()) recording_.reset();
    return status;
  }
  Status end_capture(std::unique_ptr<StepGraph>* graph) override {
    cudaGraph_t recorded = nullptr;
    cudaError_t error = cudaStreamEndCapture(stream_, &recorded);
    cudaGraphExec_t executable = nullptr;
    int64_t kernels = 0;
    if (error == cudaSuccess) error = count_kernels(recorded, &kernels);
    if (error == cudaSuccess) error = cudaGraphInstantiate(&executable, recorded, 0);
    if (recorded != nullptr) static_cast<void>(cudaGraphDestroy(recorded));
    if (error == cudaSuccess) *graph = std::make_unique<CudaGraph>(executable, kernels);
    const Status status = status_of(error);
    recording_.reset();
    return status;
  }
  Status launch(StepGraph& graph) override {
    const OnDevice here(device_);
    return status_of(cudaGraphLaunch(static_cast<CudaGraph&>(graph).executable(), stream_));
  }

 private:
  void destroy() {
    for (const ReadbackLane& lane : lanes_) {
      for (cudaEvent_t event : {lane.ran, lane.arrived}) {
        if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
      }
    }
    for (cudaStream_t stream : {copies_, stream_}) {
      if (stream != nullptr) static_cast<void>(cudaStreamDestroy(stream));
    }
  }

  int device_;
  std::optional<OnDevice> recording_;
  cudaStream_t stream_ = nullptr, copies_ = nullptr;
  ReadbackLane lanes_[2];
};

}  // namespace

std::unique_ptr<DeviceRuntime> make_cuda_runtime(int device) {
  return std::make_unique<CudaRuntime>(device);
}

}  // namespace vitrine::backend_cuda
