// Quantized matrix products of the AVX-512 table: tile by tile, in blocks of up to 8 input rows.
#include <algorithm>

#include "quantized.h"

namespace vitrine::kernels::avx512 {

const FormatKernels& find_format(WeightFormat format) {
  switch (format) {
    case WeightFormat::kInt8: return int8_format();
    case WeightFormat::kQ2K: return q2k_format();
    case WeightFormat::kQ4K: return q4k_format();
    case WeightFormat::kQ6K: return q6k_format();
    case WeightFormat::kMxfp4: return mxfp4_format();
    default: return int4_format();
  }
}

namespace {

bool same_storage(const Weight& a, const Weight& b) {
  return a.format == b.format && a.scale_format == b.scale_format &&
         a.offset_format == b.offset_format;
}

/// One tile for `count` input rows from m on, computed as `tokens` rows (the first is repeated
/// where one is missing).
void token_block(const Weight& weight, const Weight* up, int64_t row, int64_t row_end,
                 const Activations& input, const RowMap& rows, int32_t m, int32_t count,
                 int32_t tokens, const Target& target) {
  TokenRows token_rows;
  for (int t = 0; t < tokens; ++t) {
    const int64_t in_row = mapped(rows.in_rows, t < count ? m + t : m);
    token_rows.values[t] = input.quantized + in_row * input.quantized_stride;
    token_rows.scales[t] = input.scales + in_row * input.group_stride;
    token_rows.sums[t] = input.sums + in_row * input.group_stride;
  }
  const int64_t tile = row / kTileRows;
  const Weight* matrices[2] = {&weight, up};
  __m512 dots[16];
  const FormatKernels& format = find_format(weight.format);
  const int block = block_index(tokens);
  if (up == nullptr) {
    format.one_matrix[block](matrices, tile, token_rows, dots);
  } else if (tokens < 8 && same_storage(weight, *up)) {
    format.two_matrices[block](matrices, tile, token_rows, dots);
  } else {
    format.one_matrix[block](matrices, tile, token_rows, dots);
    find_format(up->format).one_matrix[block](matrices + 1, tile, token_rows, dots + tokens);
  }
  const __mmask16 stored = first_lanes(row_end - row);
  for (int t = 0; t < count; ++t) {
    __m512 v = dots[t];
    if (up != nullptr) v = _mm512_mul_ps(silu_lanes(v), dots[tokens + t]);
    store_dots(target, m + t, row, stored, v);
  }
}

}  // namespace

void linear_quantized(const Weight& weight, const Weight* up, int64_t row_begin, int64_t row_end,
                      const Activations& input, const RowMap& rows, const Target& target) {
  for (int64_t row = row_begin; row < row_end; row += kTileRows) {
    for (int32_t m = 0; m < rows.count;) {
      const int32_t left = rows.count - m;
      // A block of 8 is worth it from 7 rows on; 5 and 6 are 3 and the rest.
      const int32_t tokens = left >= 7 ? 8 : left == 5 || left == 6 ? 3 : left;
      const int32_t count = std::min(left, tokens);
      token_block(weight, up, row, row_end, input, rows, m, count, tokens, target);
      m += count;
    }
  }
}

}  // namespace vitrine::kernels::avx512
