// SPDX-License-Identifier: Apache-2.0
// The one way from the device to the host on CUDA's fused path.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace vitrine::backend_cuda {

/// One of the readbacks that may be under way.
struct ReadbackLane {
  cudaEvent_t ran = nullptr;      // what is read back has been computed
  cudaEvent_t arrived = nullptr;  // and is on the host
};

/// Begins to copy to the host, on `copies`, what `stream` will have written; `stream` goes on.
cudaError_t start_copy_back(const ReadbackLane& lane, void* to, const void* from, size_t bytes,
                            cudaStream_t stream, cudaStream_t copies);

/// Waits until the lane's copy is there.
cudaError_t finish_copy_back(const ReadbackLane& lane);

/// As a model is loaded, in no step: waits until what was copied to the device is there.
cudaError_t finish_upload(cudaStream_t stream);

}  // namespace vitrine::backend_cuda
