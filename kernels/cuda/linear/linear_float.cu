// SPDX-License-Identifier: Apache-2.0
// 16-lane dots: half a warp for two weight rows and up to four tokens, each lane with the elements
// of its residue.
//
// Bytes: the matrix once for four tokens (the rest out of the L2 cache), in sectors of 32 bytes
// that are used whole. 64 loads a thread are under way at once, so that a matrix with a row for
// each half warp of the GPU (8,000 rows) should reach 60 % or more of the bandwidth; a router of
// 128 rows is 4 dependent loads and cols / 16 dependent FMAs long, about 3 us at 2,048 columns.
// With many tokens FMAs are the bound.
#include "kernels/cuda/linear/linear_float.h"

#include "kernels/cuda/floats.h"
#include "kernels/cuda/linear/epilogue.h"
#include "kernels/cuda/linear/words.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kUnits = kThreads / 16;  // half warps: each two rows, or one of gate and one of up
constexpr int kSteps = 32;             // loads of a lane for each row at once
constexpr int kMaxTokens = 4;

struct FloatArguments {
  FloatMatrix matrix;
  const void* up = nullptr;
  const float* up_scales = nullptr;
  FloatRows rows;
  Epilogue epilogue;
};

/// The block's expert, and for each of its tokens the input row (that of the first where there is
/// none) and the output row (-1: none). False: nothing to do.
template <int kTokens>
VITRINE_DEVICE bool find_rows(const FloatRows& rows, int32_t& expert, int32_t (&in)[kTokens],
                              int32_t (&out)[kTokens]) {
  const Rows& map = rows.map;
  const int first = block_y() * kTokens;
  int32_t count = map.count;
  expert = 0;
  if (map.tile_experts != nullptr) {
    const int tile = first / rows.tile_rows;
    if (tile >= *map.num_tiles) return false;
    expert = map.tile_experts[tile];
    if (expert < 0) return false;
  } else if (map.device_count != nullptr && *map.device_count < count) {
    count = *map.device_count;
  }
  for (int t = 0; t < kTokens; ++t) {
    if (map.tile_experts != nullptr) {
      out[t] = map.row_routes[first + t];
      in[t] = out[t] / map.routes_per_row;
    } else {
      out[t] = first + t < count ? first + t : -1;
      in[t] = out[t];
    }
    if (out[t] < 0) in[t] = in[0];
  }
  return out[0] >= 0;
}

/// Adds the products of kSteps loads to a lane's sums; with scales, those of each group of 128
/// columns first by themselves (docs/numerics.md).
template <FloatFormat kFormat, int kTokens>
VITRINE_DEVICE void add_products(const FloatArguments& a, int64_t begin,
                                 const float (&w)[2][kSteps], const float* const (&scales)[2],
                                 const int32_t (&in)[kTokens], float (&sum)[2][kTokens]) {
  const int64_t cols = a.matrix.cols;
  constexpr bool kScaled = kFormat == FloatFormat::kE4M3;
  constexpr int kGroupSteps = kScaled ? kE4M3Group / 16 : kSteps;
  VITRINE_UNROLL
  for (int first = 0; first < kSteps; first += kGroupSteps) {
    const int64_t group_begin = begin / 16 * 16 + 16 * first;
    if (group_begin >= cols) break;
    float part[2][kTokens] = {};
    VITRINE_UNROLL
    for (int s = first; s < first + kGroupSteps; ++s) {
      const int64_t i = begin + 16 * s;
      if (i >= cols) break;
      for (int t = 0; t < kTokens; ++t) {
        const float x = a.rows.values[in[t] * a.rows.stride + i];
        for (int r = 0; r < 2; ++r) {
          float& to = kScaled ? part[r][t] : sum[r][t];
          to = fma_rn(w[r][s], x, to);
        }
      }
    }
    if constexpr (kScaled) {
      for (int r = 0; r < 2; ++r) {
        const float scale = scales[r][group_begin / kE4M3Group];
        for (int t = 0; t < kTokens; ++t) sum[r][t] = fma_rn(part[r][t], scale, sum[r][t]);
      }
    }
  }
}

template <FloatFormat kFormat, int kTokens>
VITRINE_KERNEL(kThreads)
void linear_float_kernel(const FloatArguments a) {
  int32_t expert, in[kTokens], out[kTokens];
  if (!find_rows(a.rows, expert, in, out)) return;
  const bool gated = a.up != nullptr;
  const int64_t cols = a.matrix.cols;
  const int64_t unit = static_cast<int64_t>(block_x()) * kUnits + thread_index() / 16;
  const int lane = thread_index() % 16;
  int64_t row[2];
  const uint8_t* weights[2];
  const float* scales[2] = {};
  for (int r = 0; r < 2; ++r) {
    row[r] = gated ? unit : 2 * unit + r;
    const void* matrix = gated && r == 1 ? a.up : a.matrix.data;
    const int64_t from = expert * a.matrix.rows + (row[r] < a.matrix.rows ? row[r] : 0);
    weights[r] = static_cast<const uint8_t*>(matrix) + from * cols * element_bytes(kFormat);
    if constexpr (kFormat == FloatFormat::kE4M3) {
      const float* first = gated && r == 1 ? a.up_scales : a.matrix.scales;
      scales[r] = first + from * group_count(cols, kE4M3Group);
    }
  }
  float sum[2][kTokens] = {};
  for (int64_t first = 0; first < cols; first += 16 * kSteps) {
    const int64_t begin = first + lane;
    float w[2][kSteps];
    VITRINE_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      const int64_t i = begin + 16 * s;
      for (int r = 0; r < 2; ++r) w[r][s] = i < cols ? load_element<kFormat>(weights[r], i) : 0.0f;
    }
    add_products<kFormat>(a, begin, w, scales, in, sum);
  }
  VITRINE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    for (int r = 0; r < 2; ++r) {
      for (int width = 8; width > 0; width /= 2) {
        sum[r][t] = sum[r][t] + shuffle_xor(sum[r][t], width);
      }
    }
    if (lane != t || out[t] < 0) continue;
    if (gated) {
      if (row[0] < a.matrix.rows) {
        finish_gate_up(a.epilogue, out[t], row[0], sum[0][t], sum[1][t]);
      }
      continue;
    }
    for (int r = 0; r < 2; ++r) {
      if (row[r] < a.matrix.rows) finish_linear(a.epilogue, expert, out[t], row[r], sum[r][t]);
    }
  }
}

template <FloatFormat kFormat>
Status start(const FloatArguments& a, int32_t experts, Stream stream) {
  const int64_t units = a.up != nullptr ? a.matrix.rows : divide_up<int64_t>(a.matrix.rows, 2);
  const auto blocks_x = static_cast<uint32_t>(divide_up<int64_t>(units, kUnits));
  const int64_t count = a.rows.map.count;
  if (a.rows.map.tile_experts == nullptr && count == 1) {
    return launch(linear_float_kernel<kFormat, 1>, {blocks_x, 1}, kThreads, 0, stream, a);
  }
  int64_t blocks_y = divide_up<int64_t>(count, kMaxTokens);
  if (a.rows.map.tile_experts != nullptr) {
    const int64_t tiles = count / a.rows.tile_rows + (experts < count ? experts : count);
    blocks_y = tiles * (a.rows.tile_rows / kMaxTokens);
  }
  if (blocks_y > 65535) return refuse("linear_float: too many rows for one launch");
  return launch(linear_float_kernel<kFormat, kMaxTokens>,
                {blocks_x, static_cast<uint32_t>(blocks_y)}, kThreads, 0, stream, a);
}

Status run(const FloatArguments& a, int32_t experts, Stream stream) {
  if (a.matrix.rows <= 0 || a.matrix.cols <= 0 || experts <= 0) {
    return refuse("linear_float: an empty matrix");
  }
  if (a.matrix.format == FloatFormat::kE4M3 &&
      (a.matrix.scales == nullptr || (a.up != nullptr && a.up_scales == nullptr))) {
    return refuse("linear_float: E4M3 weights need scales");
  }
  const Rows& map = a.rows.map;
  if (map.count <= 0) return refuse("linear_float: count of rows, expected at least 1");
  if (map.tile_experts == nullptr) {
    if (experts > 1) return refuse("linear_float: several experts need tiles");
  } else if (map.num_tiles == nullptr || map.row_routes == nullptr || map.routes_per_row < 1 ||
             a.rows.tile_rows <= 0 || a.rows.tile_rows % kMaxTokens != 0) {
    return refuse("linear_float: tiles, expected with routes and a multiple of 4 rows each");
  }
  switch (a.matrix.format) {
    case FloatFormat::kF32: return start<FloatFormat::kF32>(a, experts, stream);
    case FloatFormat::kF16: return start<FloatFormat::kF16>(a, experts, stream);
    case FloatFormat::kE4M3: return start<FloatFormat::kE4M3>(a, experts, stream);
    default: return start<FloatFormat::kBF16>(a, experts, stream);
  }
}

}  // namespace

Status linear_float(const FloatMatrix& weight, int32_t experts, const FloatRows& rows,
                    const Epilogue& epilogue, Stream stream) {
  return run({weight, nullptr, nullptr, rows, epilogue}, experts, stream);
}

Status gate_up_float(const FloatMatrix& gate, const FloatMatrix& up, int32_t experts,
                     const FloatRows& rows, const Epilogue& epilogue, Stream stream) {
  if (gate.format != up.format || gate.rows != up.rows || gate.cols != up.cols) {
    return refuse("gate_up_float: matrices of two shapes");
  }
  if (epilogue.bias != nullptr || epilogue.adds_residual) {
    return refuse("gate_up_float: takes no bias and no residual");
  }
  return run({gate, up.data, up.scales, rows, epilogue}, experts, stream);
}

}  // namespace vitrine::kernels::cuda
