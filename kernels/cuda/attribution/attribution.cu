// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/attribution/attribution.h"

#include "kernels/cuda/reduce.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kHalves = kThreads / kLanes;
constexpr int kColumnsOfBlock = 4 * kThreads;

// Bytes: 8 a number. Rows are few, widths up to some top_k * hidden.
VITRINE_KERNEL(kThreads)
void copy_rows_kernel(RowCopies copies) {
  const CopiedRows& copy = copies.copies[block_z()];
  const int64_t row = block_x();
  const int64_t token = copies.index != nullptr ? copies.index[row] : row;
  const int64_t first = static_cast<int64_t>(block_y()) * kColumnsOfBlock + thread_index();
  for (int j = 0; j < kColumnsOfBlock / kThreads; ++j) {
    const int64_t i = first + static_cast<int64_t>(j) * kThreads;
    if (i < copy.width) copy.to[row * copy.to_stride + i] = copy.from[token * copy.from_stride + i];
  }
}

// A warp a row: the two ids, and the scale of the final norm.
VITRINE_KERNEL(kWarp)
void prepare_kernel(Attribution of) {
  const int64_t row = block_x();
  const float* stream = of.residual + of.row_tokens[row] * of.hidden;
  const float mean = sum_of_squares_far(stream, of.hidden) / static_cast<float>(of.hidden);
  if (lane_index() != 0) return;
  of.scales[row] = of.multiplier / square_root(mean + of.eps);
  const int64_t choice = of.row_choices[row];
  const int32_t* best = of.best_ids + choice * of.best_stride;
  const int32_t* given = of.host_choices + 2 * row;
  const int32_t found = given[0] < 0 ? of.chosen_ids[choice] : given[0];
  const int32_t chosen = found < 0 ? 0 : found;
  const int32_t second = best[0] != chosen ? best[0] : best[1];
  const int32_t other = given[1] < 0 ? second : given[1];
  of.ids[2 * row] = chosen;
  of.ids[2 * row + 1] = other < 0 ? 0 : other;
}

// A half warp a kept vector, for both directions at once. Bytes: 4 * hidden a vector.
VITRINE_KERNEL(kThreads)
void dots_kernel(Attribution of) {
  const int64_t row = block_x();
  const int32_t vector = block_y() * kHalves + thread_index() / kLanes;
  const bool is_there = vector < of.vectors;
  const int64_t n = is_there ? of.hidden : 0;
  const float* kept = of.kept + (row * of.vectors + vector) * n;
  const float* direction = of.direction + row * 2 * of.hidden;
  const float scale = of.scales[row];
  float lanes[2] = {0.0f, 0.0f};
#pragma unroll 4
  for (int64_t i = lane_index() % kLanes; i < n; i += kLanes) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const float towards = direction[side * of.hidden + i] * of.norm[i];
      lanes[side] = fma_rn(kept[i], towards, lanes[side]);
    }
  }
#pragma unroll
  for (int side = 0; side < 2; ++side) {
    const float sum = add_lanes(lanes[side]);
    if (is_there && lane_index() % kLanes == 0) {
      of.dots[(row * 2 + side) * of.vectors + vector] = sum * scale;
    }
  }
}

// A block a row and side: dots and weights into shared memory, then one thread walks the parts,
// since each one's term is the difference to what came before.
VITRINE_KERNEL(kThreads)
void terms_kernel(Attribution of) {
  auto* dots = reinterpret_cast<float*>(dynamic_shared<unsigned char>());
  float* weights = dots + of.vectors;
  const int64_t row = block_x();
  const int side = block_y();
  for (int32_t i = thread_index(); i < of.vectors; i += kThreads) {
    dots[i] = of.dots[(row * 2 + side) * of.vectors + i];
    weights[i] = of.kept_weights[row * of.vectors + i];
  }
  sync_block();
  if (thread_index() != 0) return;
  auto* out = reinterpret_cast<float*>(of.words + row * of.stride + of.terms) +
              static_cast<int64_t>(side) * of.num_terms;
  float before = 0.0f;  // the stream, before the op at hand
  for (int32_t p = 0; p < of.num_parts; ++p) {
    const AttributionPart part = of.parts[p];
    if (part.count == 0) {
      *out++ = dots[part.first] - before;
      before = dots[part.first];
      continue;
    }
    for (int32_t i = 0; i < part.count; ++i) {
      float weight = weights[part.first + i];
      if (i + 1 == part.count) {
        if (part.shared == AttributionPart::Shared::kGated) weight = sigmoid(weight);
        if (part.shared == AttributionPart::Shared::kWhole) weight = 1.0f;
      }
      const float term = part.multiplier * (weight * dots[part.first + i]);
      *out++ = term;
      before = before + term;
    }
  }
}

}  // namespace

Status copy_rows(const RowCopies& copies, int32_t rows, Stream stream) {
  if (rows < 1) return refuse("copy_rows: rows, expected at least 1");
  if (copies.count < 1 || copies.count > kMaxCopies) {
    return refuse("copy_rows: count, expected 1 to 4");
  }
  int64_t width = 1;
  for (int32_t i = 0; i < copies.count; ++i) {
    width = copies.copies[i].width > width ? copies.copies[i].width : width;
  }
  const Dim3 grid{static_cast<uint32_t>(rows),
                  static_cast<uint32_t>(divide_up<int64_t>(width, kColumnsOfBlock)),
                  static_cast<uint32_t>(copies.count)};
  return launch(copy_rows_kernel, grid, kThreads, 0, stream, copies);
}

Status attribute_rows(const Attribution& attribution, int32_t rows, Stream stream) {
  if (rows < 1) return refuse("attribute_rows: rows, expected at least 1");
  if (attribution.vectors < 1 || attribution.vectors > kMaxAttributionVectors) {
    return refuse("attribute_rows: vectors, expected 1 to 8,192");
  }
  const auto count = static_cast<uint32_t>(rows);
  Status status = launch(prepare_kernel, {count}, kWarp, 0, stream, attribution);
  if (!status.ok()) return status;
  status = embed_rows(attribution.head, attribution.ids, nullptr, 2 * rows, 1.0f,
                      attribution.direction, stream);
  if (!status.ok()) return status;
  const auto blocks = static_cast<uint32_t>(divide_up(attribution.vectors, kHalves));
  status = launch(dots_kernel, {count, blocks}, kThreads, 0, stream, attribution);
  if (!status.ok()) return status;
  const size_t shared = static_cast<size_t>(attribution.vectors) * 2 * sizeof(float);
  return launch(terms_kernel, {count, 2}, kThreads, shared, stream, attribution);
}

}  // namespace vitrine::kernels::cuda
