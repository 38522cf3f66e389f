// SPDX-License-Identifier: Apache-2.0
// CPU kernels: raw pointers, sizes and strides in, bits out. Includes nothing of the library.
//
// One table of functions per instruction set; every table gives the same bits (docs/numerics.md is
// the contract: lanes, blocks and the order in which they are added). A kernel computes the part of
// the output that it is asked for, alone on the calling thread: how work is shared out can change
// no result. No kernel allocates, locks or throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kv_kernels.h"

namespace vitrine::kernels {

/// How the elements of a weight matrix are stored.
enum class WeightFormat : uint8_t {
  kF32,     ///< row-major
  kF16,     ///< row-major
  kBF16,    ///< row-major
  kE4M3,    ///< row-major bytes; per row and 128 columns a float32 scale
  kInt8,    ///< packed in tiles (see packed layout below)
  kInt4,    ///< packed in tiles
  kInt3,    ///< packed in tiles
  kQ2K,     ///< 2 bits; per 16 columns a 4-bit scale and minimum, per 256 a float16 pair for both
  kQ4K,     ///< 4 bits; per 32 columns a 6-bit scale and minimum, per 256 a float16 pair for both
  kQ6K,     ///< 6 bits; per 16 columns an 8-bit scale, per 256 a float16 one
  kMxfp4,   ///< E2M1 values; per 32 columns an E8M0 scale
  kBlocks,  ///< the blocks of `block_format` as they are, in tiles (blocks/format.h)
};

constexpr bool is_float_format(WeightFormat format) { return format <= WeightFormat::kE4M3; }

enum class ScaleFormat : uint8_t { kF32, kF16, kBF16 };

/// Bytes of one scale.
constexpr int64_t scale_size(ScaleFormat format) { return format == ScaleFormat::kF32 ? 4 : 2; }

/// What stands beside the scale of each row and group of an int8, int4 or int3 matrix. With
/// u = the stored number, 0 … 255, 0 … 15 or 0 … 7:
enum class OffsetFormat : uint8_t {
  kNone,       ///< weight = scale * (u - bias), bias 128, 8 or 4
  kZeroPoint,  ///< int8: weight = scale * (u - bias - zero_point)
  kF32,        ///< a minimum: weight = scale * u + minimum
  kF16,
  kBF16,
};

/// Rows of one tile of a packed quantized matrix.
inline constexpr int kTileRows = 16;
/// Vocabulary entries whose statistics are gathered together, in order.
inline constexpr int kHeadBlock = 1024;
/// Bytes of weights that are fetched while a block's statistics are made: a line for 16 logits in
/// the first walk over them, two in the second.
inline constexpr int kHeadNextBytes = 3 * kHeadBlock / 16 * 64;
/// How many of the best tokens the output head reports.
inline constexpr int kTopTokens = 10;

/// The blocks of published files, row after row, that are packed without loss, by ggml's numbers.
enum class BlockFormat : uint32_t {
  kQ4_0 = 2,  ///< kInt4
  kQ4_1 = 3,  ///< kInt4 with float16 minimums
  kQ5_0 = 6,  // kBlocks, as all that say nothing else
  kQ5_1 = 7,
  kQ8_0 = 8,   ///< kInt8
  kQ2_K = 10,  ///< kQ2K
  kQ3_K = 11,
  kQ4_K = 12,  ///< kQ4K
  kQ5_K = 13,
  kQ6_K = 14,  ///< kQ6K
  kIq2Xxs = 16,
  kIq2Xs = 17,
  kIq3Xxs = 18,
  kIq1S = 19,
  kIq4Nl = 20,
  kIq3S = 21,
  kIq2S = 22,
  kIq4Xs = 23,
  kIq1M = 29,
  kTq1_0 = 34,
  kTq2_0 = 35,
  kMxfp4 = 39,  ///< kMxfp4
  kNvfp4 = 40,
  kQ1_0 = 41,
  kQ2_0 = 42,
};

/// A handle to a weight matrix [rows, cols]; does not own. Logical rows are output features.
///
/// Float formats: row-major with `cols` elements a row. kE4M3 has scales [rows][groups] in float32,
/// and none of its bytes is a NaN (0x7f, 0xff). The others may be `tiled`, for `linear`
/// alone: tiles of 16 rows and an even number of columns (what is past the end is zero), as
/// [tile][cols][16], or of kBF16 two columns side by side, [tile][cols / 2][16][2]. The bits are
/// those of rows, which take one and a half times as long, or with few columns twice.
/// Quantized formats: tiles of 16 rows (rows past the end are zero), in each the units of 32
/// columns in order (columns past the end are zero). With r the row in the tile and c the column in
/// the unit, a unit holds the unsigned number u[r][c] in
///   kInt8: byte 64*(c/4) + 4*r + c%4;
///   kInt4, kQ4K, kMxfp4: byte 64*(c/8) + 4*r + c%4, low nibble where c%8 < 4, else high;
///   kInt3: the columns below 24: byte 64*(c/8) + 4*r + c%4, bits 0 to 2 where c%8 < 4, else 3 to
///         5; bits 6 and 7 of that byte of the first run are the low two bits of column 24 + c%4,
///         of the second run those of column 28 + c%4, of the third run the high bits of both;
///   kQ2K: byte 64*(c/16) + 4*r + c%4, from bit 2*(c%16/4) on;
///   kQ6K: its low four bits as kInt4, its high two as kQ2K, from byte 256 on.
/// A group is group_size columns, the last one what is left. Its scales:
///   kInt8, kInt4, kInt3: scales [tile][group][16] in `scale_format`, offsets the same in
///         offset_format.
///   kQ2K: per tile and 256 columns 320 bytes: float16 d[16], dmin[16], then for 16 columns each a
///         byte a row, scale | min << 4. weight = d*scale*u - dmin*min.
///   kQ4K: per tile and 256 columns 256 bytes: float16 d[16], dmin[16]; for group g of 8 a byte a
///         row (scale & 15) | (min & 15) << 4; for each two groups a byte a row with the high bits:
///         scale and min of the first, then of the second. weight = d*scale*u - dmin*min.
///   kQ6K: per tile and 256 columns 288 bytes: float16 d[16], then int8 scale[16][16 rows] for 16
///         columns each. weight = d*scale*(u - 32).
///   kMxfp4: a byte e [tile][group][16]. weight = 2^(e-128) * value(u), in units of a half: 0, 1,
///         2, 3, 4, 6, 8, 12 and their negatives.
/// kBlocks: units and scales as the format's own file in blocks/ says.
/// Any alignment works; on 64 bytes (rows too, where float) decode is up to twice as fast.
struct Weight {
  WeightFormat format = WeightFormat::kF32;
  ScaleFormat scale_format = ScaleFormat::kF32;
  OffsetFormat offset_format = OffsetFormat::kNone;
  bool tiled = false;
  // Quantized formats: 32, 64 or 128; 32 where not kInt8, kInt4 or kInt3. kE4M3: 128.
  int32_t group_size = 0;
  int64_t rows = 0;
  int64_t cols = 0;
  const void* data = nullptr;
  const void* scales = nullptr;
  const void* offsets = nullptr;  // of integers, with another offset_format than kNone
  // Says what kBlocks are, and `blocks`.
  BlockFormat block_format = BlockFormat::kQ4_0;
  float multiplier = 1.0f;  // of kNvfp4: each scale is times this, rounded
  // Instead of these three: rows as their file has them. Kernels read packed tiles, so whoever
  // calls them packs the tiles that a call reads (src/ops/products.h).
  const void* blocks = nullptr;  // of block_format; where there are row_scales, words or bytes
  // Scales and zero points of integers in words (WordRows) and of kE4M3, whose rows need no
  // packing.
  const void* row_scales = nullptr;
  const int8_t* row_zero_points = nullptr;
};

/// Rows of integers as compressed-tensors has them: the numbers u as one stream of bits in words of
/// 32, the first in the lowest bits. A row begins with a word.
struct WordRows {
  const void* words = nullptr;          // [rows, quantized_row_bytes], any alignment
  const void* scales = nullptr;         // [rows, groups] in the matrix's scale_format, the same
  const int8_t* zero_points = nullptr;  // [rows, groups], where the matrix has kZeroPoint
};

constexpr int64_t group_count(int64_t cols, int32_t group_size) {
  return (cols + group_size - 1) / group_size;
}

/// Columns of a quantized row in memory: cols, up to a whole unit of 32.
constexpr int64_t padded_cols(int64_t cols) { return (cols + 31) / 32 * 32; }

/// Sums of a group's int8 values; at most 128 * 127.
struct GroupSum {
  int16_t whole = 0;
  int16_t first_half = 0;  // of the first group_size / 2 columns
  float weighted = 0;      // whole * scale, rounded
};

/// The rows of a quantized matrix, each in one piece, for whoever reads single ones: in a tile a
/// row is a cache line for each four columns. A row is padded_cols(cols) signed numbers, then a
/// float32 scale for every group_size of them. Does not own.
struct RowMajor {
  int64_t cols = 0;
  int64_t stride = 0;  // bytes of a row, a multiple of 64; 0: a format that cannot stand like this
  int32_t group_size = 0;
  const std::byte* data = nullptr;
};

/// Input rows of a linear op. Float weights read `values`; quantized weights read the int8 rows,
/// quantized with the same group size as the weight.
struct Activations {
  const float* values = nullptr;  // [rows, row_stride]
  int64_t value_stride = 0;
  const int8_t* quantized = nullptr;  // [rows, padded_cols(cols)], stride quantized_stride
  int64_t quantized_stride = 0;
  const float* scales = nullptr;   // [rows, group_count], stride group_stride
  const GroupSum* sums = nullptr;  // [rows, group_count], stride group_stride
  int64_t group_stride = 0;
};

/// Which rows go in and out: input row m is activations row in_rows[m] (m where null), and its
/// result goes to output row out_rows[m] (m where null).
struct RowMap {
  const int32_t* in_rows = nullptr;
  const int32_t* out_rows = nullptr;
  int32_t count = 0;
};

/// Statistics of one block of kHeadBlock logits (the last may be shorter).
struct HeadBlockStats {
  float max = 0;                      // largest logit
  float sum_exp = 0;                  // sum of exp(logit - max)
  float sum_exp_logit = 0;            // sum of exp(logit - max) * (logit - max)
  uint64_t hash = 0;                  // of the logits' bits (logits_hash.h)
  int32_t count = 0;                  // valid entries of the top lists
  float top_logits[kTopTokens] = {};  // descending; ties by lower id
  int32_t top_ids[kTopTokens] = {};
};

/// What the output head reports of one row of logits, merged over blocks in order.
struct HeadStats {
  float log_sum_exp = 0;  // natural log
  float entropy = 0;      // nats
  uint64_t digest = 0;    // of the row's bits: the blocks' hashes, each times its own odd factor
  int32_t count = 0;
  float top_logits[kTopTokens] = {};
  int32_t top_ids[kTopTokens] = {};
};

/// Bytes of one position's keys, or values, of one kv head.
constexpr int64_t float_kv_bytes(WeightFormat element, int64_t head_dim) {
  return head_dim * (element == WeightFormat::kF32 ? 4 : 2);
}
constexpr int64_t int16_kv_bytes(int64_t head_dim) { return (head_dim + 1) / 2 * 4 + 4; }

/// How the hidden rows of a feed-forward block are made of what its gate and up give.
struct Gating {
  enum class Kind : uint8_t {
    kSilu,      // silu(gate) * up (Shazeer 2020); gate_up has it
    kClamped,   // gpt_oss: g = min(gate, limit), u = up within ±limit: (u + 1) * (g * sigma(alpha
                // g))
    kGeluTanh,  // gemma4: gelu(gate) * up, by tanh
  };
  Kind kind = Kind::kSilu;
  float alpha = 1.0f;
  float limit = 0.0f;
};

/// Bytes of an element of a float format.
constexpr int64_t element_bytes(WeightFormat format) {
  return format == WeightFormat::kF32 ? 4 : format == WeightFormat::kE4M3 ? 1 : 2;
}
/// Columns of kE4M3 that share a scale.
inline constexpr int kE4M3Group = 128;

/// One instruction set's kernels.
struct CpuKernels {
  const char* isa;  // "avx512_amx", "avx512", "avx2_vnni", "avx2", "portable"

  /// out[i] = x[i] * (1 / sqrt(mean_square + eps)) * weight[i]; returns the mean square.
  /// weight may be null (all ones). In place is allowed.
  float (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* out);

  /// Sum of squares in the lane order of rms_norm, without writing anything.
  float (*mean_square)(const float* x, int64_t n);

  /// int8 per group: scale = max|x| / 127, q = round-half-even(x * (127 / max|x|)); all zeros where
  /// max|x| is 0, or below 3.8e-37 so that 127 / max|x| overflows (scale 0). group_size is 32, 64
  /// or 128; the last group may be shorter, and the values behind it, up to padded_cols(n), become
  /// 0. A NaN gives a NaN scale, an infinity an infinite one; the values are then 0, and every dot
  /// that meets them is NaN.
  void (*quantize_row)(const float* x, int64_t n, int32_t group_size, int8_t* values, float* scales,
                       GroupSum* sums);

  /// Does so with one scale for all groups of the row: `given`, where it is above 0, with q =
  /// round-half-even(x * (1 / given)), saturated to [-127, 127]; else max|x| / 127 of the whole
  /// row. NaN and infinities as above, of the row. 1 / given is finite.
  void (*quantize_whole_row)(const float* x, int64_t n, int32_t group_size, float given,
                             int8_t* values, float* scales, GroupSum* sums);

  /// out[out_row][r] = dot(weight row r, input row) for rows [row_begin, row_end) of the weight.
  /// row_begin is a multiple of 16; so is row_end unless it is weight.rows. `out` is indexed by the
  /// weight's row: out + out_row * out_stride + r. bias (by weight row) may be null and is added
  /// after the dot. With `residual_scale` non-null: out = out + *residual_scale * (dot + bias),
  /// each product and each sum rounded. Output rows must not repeat.
  void (*linear)(const Weight& weight, int64_t row_begin, int64_t row_end, const Activations& input,
                 const RowMap& rows, const float* bias, const float* residual_scale, float* out,
                 int64_t out_stride);

  /// out[out_row][r] = silu(gate . x) * (up . x) for rows [row_begin, row_end) of both matrices,
  /// which have equal shape and format class (both float, or both quantized with one group size);
  /// row_begin and row_end as for `linear`. Same dots as `linear`.
  void (*gate_up)(const Weight& gate, const Weight& up, int64_t row_begin, int64_t row_end,
                  const Activations& input, const RowMap& rows, float* out, int64_t out_stride);

  /// out[i] of gate[i] and up[i], of a kind that gate_up has not. kClamped: g = gate, or limit
  /// where that is less; u likewise on both sides; out = (u + 1) * (g / (1 + exp(-(alpha * g)))),
  /// each step rounded. A NaN stays one. kGeluTanh: t = ((g * g) * kGeluCubic) * g, out = (g / (1 +
  /// exp(-(kGeluFactor * (g + t))))) * up, each step rounded. In place is allowed.
  void (*apply_gating)(const Gating& gating, const float* gate, const float* up, int64_t n,
                       float* out);

  /// values[i] = cap * tanh(values[i] / cap), quotient, tanh and product each rounded (gemma4).
  void (*soft_cap)(float cap, int64_t n, float* values);

  /// One row of a matrix as float32, out[i] = weight[row][i] * multiplier: widened, or what its
  /// stored numbers mean (the product with the scale rounded, then the sum with a minimum).
  void (*embed_row)(const Weight& table, int64_t row, float multiplier, float* out);

  /// One row of a matrix whose rows stand in one piece: out[i] = (scale * number) * factors[i],
  /// each product rounded, which gives the bits of embed_row and multiply. out and factors: [cols].
  void (*widen_row)(const RowMajor& matrix, int64_t row, const float* factors, float* out);

  /// Rotary embedding of one head vector, halves layout (x[i], x[i + n/2]); in place.
  /// cos, sin: [n / 2]. out[i] = x[i]*cos - x[i+n/2]*sin; out[i+n/2] = x[i+n/2]*cos + x[i]*sin.
  void (*rope)(float* x, const float* cos, const float* sin, int32_t n);

  /// The kernels of keys and values, by codec.
  std::span<const NamedKvKernels> kv;
  /// KvKernels::attend of codecs that give tiles; `write` puts positions into the open forms.
  void (*attend_tiles)(const KvView& kv, const AttentionSpan& span);

  /// Router: probs = softmax(logits) over n experts; the k largest by descending probability, ties
  /// by lower id. weights: the chosen probabilities, divided by their sum (added in slot order)
  /// where `normalize`; or, with `softmax_after_topk` (granitemoe, mixtral give the same set),
  /// softmax over the chosen logits alone, in slot order (`normalize` is then without effect).
  /// probs: [n], always written. 1 <= k <= n. With a NaN or +inf logit all probabilities are NaN
  /// and the ids are 0 … k-1.
  void (*router_top_k)(const float* logits, int32_t n, int32_t k, bool normalize,
                       bool softmax_after_topk, float* probs, int32_t* ids, float* weights);

  /// The weights that router_top_k gives the experts `ids` [k], in this order: for its own ids, the
  /// same bits. logits, probs: [n], as router_top_k was given and made them.
  void (*route_weights)(const float* logits, const float* probs, const int32_t* ids, int32_t k,
                        bool normalize, bool softmax_after_topk, float* weights);

  /// residual[i] += multiplier * (((w[0]*slot0[i] + w[1]*slot1[i]) + …) + shared_weight*shared[i]).
  /// slots: [k, slot_stride] in slot order; shared may be null.
  void (*combine)(const float* slots, int64_t slot_stride, const float* weights, int32_t k,
                  const float* shared, float shared_weight, float multiplier, int64_t n,
                  float* residual);

  /// residual[i] += multiplier * x[i].
  void (*add_scaled)(const float* x, float multiplier, int64_t n, float* residual);

  /// values[i] *= factors[i].
  void (*multiply)(const float* factors, int64_t n, float* values);

  /// 1 / (1 + exp(-x)), with the exp of this table.
  float (*sigmoid)(float x);

  /// logits[i] *= multiplier for i in [begin, end), at most kHeadBlock entries that begin at a
  /// multiple of it (multiplier 1: untouched), then their statistics; ids are the i. NaN entries
  /// never reach the top list, -inf (masked) entries count as 0 in the sums.
  /// A NaN logit makes max, sum_exp and sum_exp_logit NaN; the hash is of bits, whatever they say.
  /// Without `statistics` (nobody records) only the maximum and the top list are made; the sums and
  /// the hash are 0.
  ///
  /// `next`: kHeadNextBytes that the caller reads behind this, or null. The vector tables fetch
  /// them into the second-level cache while they compute; without `statistics` the first third.
  void (*head_block)(float* logits, int64_t begin, int64_t end, float multiplier, bool statistics,
                     HeadBlockStats* stats, const void* next);

  /// Merges blocks in order.
  void (*head_merge)(const HeadBlockStats* blocks, int32_t count, HeadStats* stats);

  /// The exclusive or of all 64-bit words of `lines` times 64 bytes, read as fast as this
  /// instruction set can: how fast memory gives bytes where nothing is computed with them.
  uint64_t (*read_lines)(const void* data, int64_t lines);

  /// The functions of these names below.
  int64_t (*pack_blocks)(BlockFormat format, const Weight& weight, int64_t row_begin,
                         int64_t row_end, const void* blocks, void* data, void* scales,
                         void* offsets);
  int64_t (*pack_words)(const Weight& weight, int64_t row_begin, int64_t row_end,
                        const WordRows& rows, void* data, void* scales, void* offsets);
};

/// A table's functions of a codec; null: it has none.
constexpr const KvKernels* find_kv_kernels(const CpuKernels& table, std::string_view codec) {
  for (const NamedKvKernels& named : table.kv) {
    if (named.codec == codec) return &named.kernels;
  }
  return nullptr;
}

/// The portable table; always there.
const CpuKernels& portable_kernels();
/// The AVX-512 table with AMX in its quantized products of many rows, or null where this machine
/// lacks it. The first call asks the operating system for the tile registers.
const CpuKernels* avx512_amx_kernels();
/// The AVX-512 (F, BW, DQ, VL, VNNI) table, or null where this machine lacks it.
const CpuKernels* avx512_kernels();
/// The AVX2 (with FMA and F16C) table, or null where this machine lacks it.
const CpuKernels* avx2_kernels();
/// The AVX2 table with AVX-VNNI in its quantized products, or null where this machine lacks it.
const CpuKernels* avx2_vnni_kernels();
/// Every table that this machine can run, the fastest first, the portable one last.
std::span<const CpuKernels* const> cpu_kernel_tables();

/// Bytes of the packed data and scales of a quantized matrix.
size_t packed_data_bytes(WeightFormat format, int64_t rows, int64_t cols);
size_t packed_scale_bytes(ScaleFormat format, int64_t rows, int64_t cols, int32_t group_size);
size_t packed_offset_bytes(OffsetFormat format, int64_t rows, int64_t cols, int32_t group_size);

/// Bytes of a matrix's memory; scales and offsets are 0 where the format has none.
struct WeightBytes {
  size_t data = 0;
  size_t scales = 0;
  size_t offsets = 0;
  size_t total() const { return data + scales + offsets; }
};
WeightBytes packed_bytes(const Weight& weight);

/// Brings a row-major float matrix, which is not kE4M3, into tiles: packed_bytes of it `tiled`.
void tile_float_rows(const Weight& weight, void* tiles);

/// Packs rows [row_begin, row_end) (row_begin a multiple of 16) of values [rows, cols] (int8
/// holding u - bias) and scales [rows, group_count] (float, rounded to `scale_format`,
/// which must hold them exactly) into a packed matrix. `values` and `scales` point at row
/// `row_begin`. Integers only.
void pack_quantized(WeightFormat format, ScaleFormat scale_format, int32_t group_size, int64_t rows,
                    int64_t cols, int64_t row_begin, int64_t row_end, const int8_t* values,
                    const float* scales, void* data, void* packed_scales);

/// True for the number of a BlockFormat.
bool has_block_format(uint32_t ggml_type);
/// The handle of a matrix of such blocks (its pointers null). cols is a multiple of block_cols.
Weight block_weight(BlockFormat format, int64_t rows, int64_t cols);
/// Columns of a block: 32, 64, 128 or 256.
int64_t block_cols(BlockFormat format);
/// Bytes of one row of blocks in the file.
int64_t block_row_bytes(BlockFormat format, int64_t cols);
/// Packs rows [row_begin, row_end) (row_begin a multiple of 16, and row_end unless it is the last)
/// of the blocks that begin at row `row_begin` into memory of packed_bytes(weight). Returns the
/// first row with a scale or minimum that is not finite, -1 where there is none.
int64_t pack_blocks(BlockFormat format, const Weight& weight, int64_t row_begin, int64_t row_end,
                    const void* blocks, void* data, void* scales, void* offsets);

/// Bytes of one row of integers in words, or of kE4M3.
int64_t quantized_row_bytes(WeightFormat format, int64_t cols);
/// Packs rows of integers in words; `rows` begins at row `row_begin`. Returns the first row with a
/// scale that is not finite, or -1.
int64_t pack_words(const Weight& weight, int64_t row_begin, int64_t row_end, const WordRows& rows,
                   void* data, void* scales, void* offsets);
/// Whether one of kE4M3's bytes is a NaN.
bool has_nan(const void* bytes, size_t count);

/// Bytes of a row as its file has it (Weight::blocks), without what stands beside it.
int64_t stored_row_bytes(const Weight& weight);
/// Bytes of the whole matrix, with scales and zero points.
size_t stored_bytes(const Weight& weight);

/// How the rows of a packed matrix stand in one piece (its pointer null). No zero points and no
/// minimums: its stride is 0 where the matrix has them, or floats.
RowMajor row_major(const Weight& weight);
/// Writes all rows of it to `to`, of weight.rows * stride bytes.
void make_row_major(const Weight& weight, void* to);

/// Packs offsets [rows, group_count] as pack_quantized does scales; `format` must hold them
/// exactly.
void pack_offsets(OffsetFormat format, int32_t group_size, int64_t rows, int64_t cols,
                  int64_t row_begin, int64_t row_end, const float* offsets, void* packed);

}  // namespace vitrine::kernels
