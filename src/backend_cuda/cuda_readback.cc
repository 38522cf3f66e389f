#include "backend_cuda/cuda_readback.h"

namespace vitrine::backend_cuda {

cudaError_t copy_back(void* to, const void* from, size_t bytes, cudaStream_t stream) {
  const cudaError_t error = cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream);
  return error == cudaSuccess ? cudaStreamSynchronize(stream) : error;
}

}  // namespace vitrine::backend_cuda
