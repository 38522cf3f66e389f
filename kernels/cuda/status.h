// SPDX-License-Identifier: Apache-2.0
// What a CUDA kernel's launcher takes and gives back, without a CUDA header.
#pragma once

#include <cstdint>

struct CUstream_st;  // the CUDA runtime's: a cudaStream_t points to one

namespace vitrine::kernels::cuda {

/// A cudaStream_t; null is the default stream.
using Stream = CUstream_st*;

/// Shared memory that a block may have on sm_80, 90 and 100 (sm_86, 89 and 120 have less).
inline constexpr int kMaxSharedBytes = 163 * 1024;

/// What became of a launch; a kernel's own faults show only when somebody waits for it.
struct Status {
  int code = 0;           ///< a cudaError_t, or kInvalidArguments
  const char* what = "";  ///< static text: the runtime's words, or which argument is refused
  bool ok() const { return code == 0; }
};

/// A launcher was given what its kernel cannot do; nothing was launched. (cudaErrorInvalidValue.)
inline constexpr int kInvalidArguments = 1;

constexpr Status refuse(const char* what) { return {kInvalidArguments, what}; }

struct Dim3 {
  uint32_t x = 1, y = 1, z = 1;
};

/// Bits of a float format's elements on the device.
/// kE4M3: of weights alone, with a float32 scale for each row and 128 columns beside them.
enum class FloatFormat : uint8_t { kF32, kF16, kBF16, kE4M3 };

constexpr int64_t element_bytes(FloatFormat format) {
  return format == FloatFormat::kF32 ? 4 : format == FloatFormat::kE4M3 ? 1 : 2;
}

}  // namespace vitrine::kernels::cuda
