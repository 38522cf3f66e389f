// SPDX-License-Identifier: Apache-2.0
// 16-lane dots: half a warp for two weight rows (of one token alone one) and up to four tokens,
// each lane with the elements of its residue.
//
// Bytes: the matrix once for four tokens (the rest out of the L2 cache). A block's rows come into
// shared memory a piece of the columns at a time, all of it under way at once, and a small loop
// adds them up: a router of 128 rows and 2,048 columns is one round to memory and cols / 16
// dependent FMAs long, about 3 us for one token. (Loads straight into registers, unrolled, took 11
// us on an H100: instructions that run once are fetched once, and that is slow.) With many tokens
// FMAs and loads from shared memory are the bound.
#include "kernels/cuda/linear/linear_float.h"

#include "kernels/cuda/floats.h"
#include "kernels/cuda/linear/epilogue.h"
#include "kernels/cuda/linear/words.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kThreads = 64;
constexpr int kUnits = kThreads / 16;  // half warps
constexpr int kMaxTokens = 4;
/// Columns that are in shared memory at once, a multiple of 128.
constexpr int piece_for(int tokens) { return tokens == 1 ? 2048 : 1024; }
constexpr int kRowPadding = 64;  // bytes: two half warps meet no bank twice

struct FloatArguments {
  FloatMatrix matrix;
  const void* up = nullptr;
  const float* up_scales = nullptr;
  FloatRows rows;
  Epilogue epilogue;
  bool is_aligned = false;  // rows of the matrices and of the input begin at multiples of 16 bytes
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

template <FloatFormat kFormat, int kRows, int kTokens>
struct FloatShape {
  static constexpr int kPiece = piece_for(kTokens);
  static constexpr int kElement = static_cast<int>(element_bytes(kFormat));
  static constexpr int kWeightStride = kPiece * kElement + kRowPadding;
  static constexpr int kInputStride = kPiece * 4;
  static constexpr int kWeightBytes = kUnits * kRows * kWeightStride;
  static constexpr int kBytes = kWeightBytes + kTokens * kInputStride;
};

/// Starts the copy of `count` elements by a number of threads, `index` being this one's.
template <int kElement>
VITRINE_DEVICE void copy_run(uint8_t* to, const uint8_t* from, int count, bool is_aligned,
                             int index, int threads) {
  const int bytes = count * kElement;
  if (is_aligned) {
    VITRINE_UNROLL_BY(4)
    for (int i = 16 * index; i < bytes; i += 16 * threads) copy_async16(to + i, from + i);
    return;
  }
  for (int i = index; i < count; i += threads) {
    if constexpr (kElement == 4) {
      reinterpret_cast<uint32_t*>(to)[i] = reinterpret_cast<const uint32_t*>(from)[i];
    } else if constexpr (kElement == 2) {
      reinterpret_cast<uint16_t*>(to)[i] = reinterpret_cast<const uint16_t*>(from)[i];
    } else {
      to[i] = from[i];
    }
  }
}

/// Adds columns [begin, end) of a piece to a lane's sums.
template <typename Shape, FloatFormat kFormat, int kRows, int kTokens>
VITRINE_DEVICE void add_columns(const uint8_t* weights, const float* x, int begin, int end,
                                float (&sum)[kRows][kTokens]) {
  VITRINE_UNROLL_BY(8)
  for (int i = begin; i < end; i += 16) {
    float w[kRows];
    for (int r = 0; r < kRows; ++r) {
      w[r] = load_element<kFormat>(weights + r * Shape::kWeightStride, i);
    }
    for (int t = 0; t < kTokens; ++t) {
      for (int r = 0; r < kRows; ++r) {
        sum[r][t] = fma_rn(w[r], x[t * Shape::kPiece + i], sum[r][t]);
      }
    }
  }
}

// kRows: of a half warp; 2 where it has one of gate and one of up.
template <FloatFormat kFormat, int kRows, int kTokens>
VITRINE_KERNEL(kThreads)
void linear_float_kernel(const FloatArguments a) {
  using Shape = FloatShape<kFormat, kRows, kTokens>;
  int32_t expert, in[kTokens], out[kTokens];
  if (!find_rows(a.rows, expert, in, out)) return;
  auto* shared = dynamic_shared<uint8_t>();
  auto* inputs = reinterpret_cast<float*>(shared + Shape::kWeightBytes);
  const bool gated = kRows == 2 && a.up != nullptr;
  const int64_t cols = a.matrix.cols;
  const int64_t unit = static_cast<int64_t>(block_x()) * kUnits + thread_index() / 16;
  const int lane = thread_index() % 16;
  int64_t row[kRows];
  const uint8_t* weights[kRows];
  const float* scales[kRows] = {};
  for (int r = 0; r < kRows; ++r) {
    row[r] = gated ? unit : kRows * unit + r;
    const void* matrix = gated && r == 1 ? a.up : a.matrix.data;
    const int64_t from = expert * a.matrix.rows + (row[r] < a.matrix.rows ? row[r] : 0);
    weights[r] = static_cast<const uint8_t*>(matrix) + from * cols * Shape::kElement;
    if constexpr (kFormat == FloatFormat::kE4M3) {
      const float* first = gated && r == 1 ? a.up_scales : a.matrix.scales;
      scales[r] = first + from * group_count(cols, kE4M3Group);
    }
  }
  uint8_t* own = shared + thread_index() / 16 * kRows * Shape::kWeightStride;
  float sum[kRows][kTokens] = {};
  VITRINE_UNROLL_BY(1)
  for (int64_t begin = 0; begin < cols; begin += Shape::kPiece) {
    const int count = cols - begin < Shape::kPiece ? static_cast<int>(cols - begin) : Shape::kPiece;
    if (begin > 0) sync_block();  // all have read what is overwritten now
    for (int r = 0; r < kRows; ++r) {
      copy_run<Shape::kElement>(own + r * Shape::kWeightStride,
                                weights[r] + begin * Shape::kElement, count, a.is_aligned, lane,
                                16);
    }
    for (int t = 0; t < kTokens; ++t) {
      const float* from = a.rows.values + in[t] * a.rows.stride + begin;
      copy_run<4>(reinterpret_cast<uint8_t*>(inputs + t * Shape::kPiece),
                  reinterpret_cast<const uint8_t*>(from), count, a.is_aligned, thread_index(),
                  kThreads);
    }
    copy_async_commit();
    copy_async_wait<0>();
    sync_block();
    if constexpr (kFormat == FloatFormat::kE4M3) {
      // With scales, the products of each group of 128 columns first by themselves.
      for (int group = 0; group < count; group += kE4M3Group) {
        const int end = group + kE4M3Group < count ? group + kE4M3Group : count;
        float part[kRows][kTokens] = {};
        add_columns<Shape, kFormat, kRows, kTokens>(own, inputs, group + lane, end, part);
        for (int r = 0; r < kRows; ++r) {
          const float scale = scales[r][(begin + group) / kE4M3Group];
          for (int t = 0; t < kTokens; ++t) sum[r][t] = fma_rn(part[r][t], scale, sum[r][t]);
        }
      }
    } else {
      add_columns<Shape, kFormat, kRows, kTokens>(own, inputs, lane, count, sum);
    }
  }
  VITRINE_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    for (int r = 0; r < kRows; ++r) {
      for (int width = 8; width > 0; width /= 2) {
        sum[r][t] = sum[r][t] + shuffle_xor(sum[r][t], width);
      }
    }
    if (lane != t || out[t] < 0) continue;
    if (gated) {
      if (row[0] < a.matrix.rows) {
        finish_gate_up(a.epilogue, out[t], row[0], sum[0][t], sum[kRows - 1][t]);
      }
      continue;
    }
    for (int r = 0; r < kRows; ++r) {
      if (row[r] < a.matrix.rows) finish_linear(a.epilogue, expert, out[t], row[r], sum[r][t]);
    }
  }
}

template <FloatFormat kFormat>
Status start(const FloatArguments& a, int32_t experts, Stream stream) {
  const int64_t count = a.rows.map.count;
  const bool is_one = a.rows.map.tile_experts == nullptr && count == 1;
  const int64_t rows_per_unit = a.up != nullptr || is_one ? 1 : 2;
  const int64_t units = divide_up<int64_t>(a.matrix.rows, rows_per_unit);
  const auto blocks_x = static_cast<uint32_t>(divide_up<int64_t>(units, kUnits));
  const auto begin = [&]<int kRows, int kTokens>(uint32_t blocks_y) {
    return launch(linear_float_kernel<kFormat, kRows, kTokens>, {blocks_x, blocks_y}, kThreads,
                  static_cast<size_t>(FloatShape<kFormat, kRows, kTokens>::kBytes), stream, a);
  };
  if (is_one) {
    return a.up != nullptr ? begin.template operator()<2, 1>(1)
                           : begin.template operator()<1, 1>(1);
  }
  int64_t blocks_y = divide_up<int64_t>(count, kMaxTokens);
  if (a.rows.map.tile_experts != nullptr) {
    const int64_t tiles = count / a.rows.tile_rows + (experts < count ? experts : count);
    blocks_y = tiles * (a.rows.tile_rows / kMaxTokens);
  }
  if (blocks_y > 65535) return refuse("linear_float: too many rows for one launch");
  return begin.template operator()<2, kMaxTokens>(static_cast<uint32_t>(blocks_y));
}

Status run(FloatArguments a, int32_t experts, Stream stream) {
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
  const auto is_vectors = [](const void* data, int64_t row_bytes) {
    return row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(data) % 16 == 0;
  };
  const int64_t row_bytes = a.matrix.cols * element_bytes(a.matrix.format);
  a.is_aligned = is_vectors(a.matrix.data, row_bytes) && is_vectors(a.up, row_bytes) &&
                 a.matrix.cols % 4 == 0 && is_vectors(a.rows.values, a.rows.stride * 4);
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
