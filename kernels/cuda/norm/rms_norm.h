// SPDX-License-Identifier: Apache-2.0
// RMSNorm (Zhang and Sennrich, 2019), with what comes before it (a sum into the residual stream)
// and behind it (the forms that matrix products read), in one pass over the row.
#pragma once

#include "kernels/cuda/combine/combine.h"
#include "kernels/cuda/linear/activation_rows.h"
#include "kernels/cuda/status.h"

namespace vitrine::kernels::cuda {

struct RmsNorm {
  int64_t n = 0;  ///< at most 32,768
  float eps = 0;
  const float* weight = nullptr;  ///< [n] float32; null: all ones
  float* residual = nullptr;  ///< [tokens, n] float32: the input; written where there is an addend
  Addend addend = {};         ///< added to the residual row first
  /// [rows]: output row r is of token input_rows[r], each once; null: of token r.
  const int32_t* input_rows = nullptr;
  // Outputs, each where not null.
  float* out = nullptr;  ///< [rows, n] float32
  /// As rows of linear/activation_rows.h, which the matrix products read: bfloat16, rounded to
  /// nearest even, and int8 with groups of `group_size` (32, 64 or 128). 16-byte aligned.
  void* bf16_rows = nullptr;
  void* int8_rows = nullptr;
  int32_t group_size = 0;
  void* e4m3_rows = nullptr;  ///< as E4M3 records of 128 columns
  /// Where the L2 norm of token row r's residual goes, sqrt(mean_square * n): norms[r *
  /// norm_stride].
  float* norms = nullptr;
  int64_t norm_stride = 0;
};

/// The mean square, the output and the quantized form have the bits of the CPU kernels.
Status rms_norm(const RmsNorm& norm, int32_t rows, Stream stream);

}  // namespace vitrine::kernels::cuda
