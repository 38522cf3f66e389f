// The one way from the device to the host on CUDA's fused path.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace vitrine::backend_cuda {

/// Copies to the host and waits for everything on the stream.
cudaError_t copy_back(void* to, const void* from, size_t bytes, cudaStream_t stream);

}  // namespace vitrine::backend_cuda
