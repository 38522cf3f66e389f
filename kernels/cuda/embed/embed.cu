// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/embed/embed.h"

#include "kernels/cuda/floats.h"

namespace vitrine::kernels::cuda {
namespace {

constexpr int kThreads = 256;

using Kind = EmbeddingTable::Kind;

// Elements [i, i + 4) of a row as integers: q, or u where there are minimums.
template <Kind kKind>
VITRINE_DEVICE void load_numbers(const EmbeddingTable& table, int64_t row, int64_t i,
                                 int32_t (&numbers)[kVector]) {
#pragma unroll
  for (int j = 0; j < kVector; ++j) {
    const int64_t col = i + j < table.n ? i + j : table.n - 1;
    if constexpr (kKind == Kind::kInt8) {
      numbers[j] = static_cast<const int8_t*>(table.data)[row * table.n + col];
    } else {
      const int64_t row_bytes = (table.n + 1) / 2;
      const uint8_t pair = static_cast<const uint8_t*>(table.data)[row * row_bytes + col / 2];
      const int32_t number = pair >> (4 * (col % 2)) & 15;
      numbers[j] = table.minimums != nullptr ? number : number - 8;
    }
  }
}

// Four elements a thread. Bytes: a row's as stored to read, 4n to write.
template <Kind kKind, FloatFormat kFormat>
VITRINE_KERNEL(kThreads)
void embed_kernel(EmbeddingTable table, const int32_t* ids, const int32_t* chosen_ids,
                  float multiplier, bool whole, bool whole_out, float* out) {
  const int64_t i = (static_cast<int64_t>(block_y()) * kThreads + thread_index()) * kVector;
  if (i >= table.n) return;
  const int64_t token = block_x();
  int64_t row = ids[token];
  if (row < 0) {
    row = chosen_ids[-1 - row];
    if (row < 0) row = 0;  // nothing was chosen: a row that is there, which nobody will look at
  }
  float values[kVector];
  if constexpr (kKind == Kind::kFloat) {
    if (i + kVector <= table.n) {
      load_elements<kFormat>(table.data, row * table.n + i, whole, values);
    } else {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        values[j] =
            i + j < table.n ? load_element<kFormat>(table.data, row * table.n + i + j) : 0.0f;
      }
    }
  } else {
    int32_t numbers[kVector];
    load_numbers<kKind>(table, row, i, numbers);
    const int64_t groups = divide_up<int64_t>(table.n, table.group_size);
    const int64_t group = row * groups + i / table.group_size;
    const float scale = load_element<kFormat>(table.scales, group);
#pragma unroll
    for (int j = 0; j < kVector; ++j) values[j] = scale * static_cast<float>(numbers[j]);
    if (table.minimums != nullptr) {
      const float minimum = load_element<kFormat>(table.minimums, group);
#pragma unroll
      for (int j = 0; j < kVector; ++j) values[j] = values[j] + minimum;
    }
  }
#pragma unroll
  for (int j = 0; j < kVector; ++j) values[j] = values[j] * multiplier;
  store_floats(out + token * table.n, i, table.n, whole_out, values);
}

template <Kind kKind>
Status launch_kind(const EmbeddingTable& table, const int32_t* ids, const int32_t* chosen_ids,
                   int32_t tokens, float multiplier, float* out, Stream stream) {
  const Dim3 grid{static_cast<uint32_t>(tokens),
                  static_cast<uint32_t>(divide_up<int64_t>(table.n, kThreads * kVector))};
  return with_format(table.format, [&](auto format) {
    return launch(embed_kernel<kKind, decltype(format)::value>, grid, kThreads, 0, stream, table,
                  ids, chosen_ids, multiplier, is_whole(table.n, table.data),
                  is_whole(table.n, out), out);
  });
}

}  // namespace

Status embed_rows(const EmbeddingTable& table, const int32_t* ids, const int32_t* chosen_ids,
                  int32_t tokens, float multiplier, float* out, Stream stream) {
  if (tokens < 1 || table.n < 1) return refuse("embed_rows: tokens and n, expected at least 1");
  if (table.kind != Kind::kFloat &&
      (table.group_size < kVector || table.group_size % kVector != 0)) {
    return refuse("embed_rows: group_size, expected a multiple of 4");
  }
  const auto start = [&](auto kind) {
    return launch_kind<decltype(kind)::value>(table, ids, chosen_ids, tokens, multiplier, out,
                                              stream);
  };
  switch (table.kind) {
    case Kind::kInt8: return start(std::integral_constant<Kind, Kind::kInt8>());
    case Kind::kInt4: return start(std::integral_constant<Kind, Kind::kInt4>());
    default: return start(std::integral_constant<Kind, Kind::kFloat>());
  }
}

}  // namespace vitrine::kernels::cuda
