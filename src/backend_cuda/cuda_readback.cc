// SPDX-License-Identifier: Apache-2.0
#include "backend_cuda/cuda_readback.h"

namespace vitrine::backend_cuda {

cudaError_t start_copy_back(const ReadbackLane& lane, void* to, const void* from, size_t bytes,
                            cudaStream_t stream, cudaStream_t copies) {
  cudaError_t error = cudaEventRecord(lane.ran, stream);
  if (error == cudaSuccess) error = cudaStreamWaitEvent(copies, lane.ran, 0);
  if (error == cudaSuccess) {
    error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, copies);
  }
  return error == cudaSuccess ? cudaEventRecord(lane.arrived, copies) : error;
}

cudaError_t finish_copy_back(const ReadbackLane& lane) {
  return cudaEventSynchronize(lane.arrived);
}

cudaError_t finish_upload(cudaStream_t stream) { return cudaStreamSynchronize(stream); }

}  // namespace vitrine::backend_cuda
