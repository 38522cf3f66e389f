// SPDX-License-Identifier: Apache-2.0
// The room `quant`: codecs for weights, array in, array out.
//
// A scheme says how one weight matrix becomes small integers and scales. Schemes are found by name
// in a registry; each lives in one file of src/quant. This room reads and writes no file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/core.h"

namespace vitrine {

/// What a quantized matrix stores for a weight.
enum class NumberFormat : uint8_t {
  kInteger,  ///< a signed integer
  kE4M3,     ///< an 8-bit float's bits: sign, 4 of the exponent (bias 7), 3 of the mantissa; no
             ///< infinities, 448 the largest (OCP 8-bit Floating Point Specification 1.0)
};

/// How a weight matrix is quantized: one scale, and where asymmetric one zero point, per row and
/// group of columns.
struct QuantScheme {
  int bits = 8;           ///< 3 (values -4..3), 4 (-8..7) or 8 (-128..127)
  int group_size = 32;    ///< columns that share a scale: 32, 64 or 128
  bool symmetric = true;  ///< false: groups have zero points
  bool operator==(const QuantScheme&) const = default;
};

/// A quantized weight matrix, one scale per row and group of columns, the last group of a row may
/// be shorter: weight[r][c] ~ (values[r][c] - zero_points[r][g]) * scales[r][g], g = c /
/// group_size. With kE4M3 the values are the floats that their bits stand for, without zero points.
struct QuantizedMatrix {
  NumberFormat number_format = NumberFormat::kInteger;  ///< of a value
  int bits = 8;                                         ///< of a value
  int group_size = 32;                                  ///< columns that share a scale
  int64_t rows = 0;                                     ///< of the matrix
  int64_t cols = 0;                                     ///< of the matrix
  std::vector<int8_t> values;       ///< [rows, cols], row-major, one value a byte
  std::vector<float> scales;        ///< [rows, groups()], exact in `scale_dtype`
  std::vector<int8_t> zero_points;  ///< [rows, groups()], in the range of values; empty: all zero
  DType scale_dtype = DType::kF32;  ///< the dtype of the scales on disk (F32, F16 or BF16)

  /// Groups of a row; group_size must be positive.
  int64_t groups() const { return cols / group_size + (cols % group_size != 0 ? 1 : 0); }
};

/// Size of the quantization error of one matrix, over all of its elements.
struct QuantError {
  double mean_absolute = 0.0;   ///< mean of |weight - dequantized|
  double worst_absolute = 0.0;  ///< largest |weight - dequantized|
};

/// Round-to-nearest quantization of a row-major [rows, cols] matrix.
///
/// `weights` holds the matrix widened to float32; `dtype` (F32, F16 or BF16) is what it was stored
/// in, and every value must be exact in it. Values and scales equal, bit for bit, those of PyPI's
/// `compressed-tensors` (`calculate_qparams` on the minimum and maximum of each group, then
/// `quantize`), which computes in the weight's own dtype:
///
///     scale = max(|min|, |max|) / ((2^bits - 1) / 2), rounded to dtype; 0 becomes dtype's epsilon
///     value = round_half_even(clamp(weight / scale, rounded to dtype, least, most))
///
/// with least = -2^(bits-1) and most = 2^(bits-1) - 1; and asymmetric, with minimum and maximum at
/// most and at least 0 and each operation rounded:
///
///     scale = (max - min) / (2^bits - 1); zero_point = round_half_even(-2^(bits-1) - min / scale)
///     value = round_half_even(clamp(weight / scale + zero_point, least, most))
///
/// Throws kInvalidArgument where bits or group size are not among those of QuantScheme, `cols` is
/// not a multiple of the group size, sizes disagree, or a weight is not finite. Thread-safe.
VITRINE_API QuantizedMatrix quantize_matrix(std::span<const float> weights, int64_t rows,
                                            int64_t cols, DType dtype, const QuantScheme& scheme);

/// (values - zero_points) * scales in float32, each product rounded once, [rows, cols] row-major.
/// Throws kInvalidArgument for sizes that disagree.
VITRINE_API std::vector<float> dequantize_matrix(const QuantizedMatrix& matrix);

/// Error of `matrix` against the weights that it was made from ([rows, cols]).
VITRINE_API QuantError quantization_error(std::span<const float> weights,
                                          const QuantizedMatrix& matrix);

/// One entry of the registry: a named way to quantize a matrix.
struct QuantMethod {
  std::string name;         ///< what the user writes: "int8", "int4-asymmetric"
  std::string description;  ///< one line
  NumberFormat number_format = NumberFormat::kInteger;  ///< of a stored value
  int bits = 0;                                         ///< bits of a stored value
  bool symmetric = true;                                ///< false: groups have zero points
  /// Quantizes a matrix under the contract of quantize_matrix, with `group_size` in place of the
  /// scheme.
  QuantizedMatrix (*quantize)(std::span<const float> weights, int64_t rows, int64_t cols,
                              DType dtype, int group_size) = nullptr;
};

/// Returns the method of that name. Throws kInvalidArgument naming the ones there are.
VITRINE_API const QuantMethod& find_quant_method(std::string_view name);

/// All registered methods, ordered by name.
VITRINE_API std::vector<QuantMethod> quant_methods();

/// How GGUF files store blocks of a row's weights, under ggml's name: `block_size` neighbouring
/// values in `block_bytes` bytes. Formats are found by number in a registry; each lives in one file
/// of src/quant.
struct BlockFormat {
  std::string_view name;    ///< "Q4_0"
  uint32_t ggml_type = 0;   ///< its number in a file
  int64_t block_size = 0;   ///< values: a multiple of 32
  int64_t block_bytes = 0;  ///< of one block

  /// Blocks to float32, `num_blocks * block_size` of them, bit for bit as llama.cpp (`to_float` of
  /// the type's traits); which of its payloads a NaN has is left open. No alignment needed.
  void (*dequantize)(const std::byte* blocks, int64_t num_blocks, float* out) = nullptr;
};

/// The format of that number, or null.
VITRINE_API const BlockFormat* find_block_format(uint32_t ggml_type);
/// All registered formats, ordered by number.
VITRINE_API std::vector<BlockFormat> block_formats();

/// float32 to bfloat16 bits, nearest with ties to even; a NaN stays a NaN.
VITRINE_API uint16_t float_to_bf16(float value);
/// bfloat16 bits to float32 (exact).
VITRINE_API float bf16_to_float(uint16_t bits);
/// float32 to IEEE half bits, nearest with ties to even (subnormals kept, overflow to infinity).
VITRINE_API uint16_t float_to_f16(float value);
/// IEEE half bits to float32 (exact).
VITRINE_API float f16_to_float(uint16_t bits);
/// E4M3 bits to float32 (exact; 0x7f and 0xff are NaN).
VITRINE_API float e4m3_to_float(uint8_t bits);
/// float32 to E4M3 bits, nearest with ties to even; what is beyond 448 becomes 448, NaN stays NaN.
VITRINE_API uint8_t float_to_e4m3(float value);
/// Widens `count` elements of F32, F16 or BF16 (little-endian, no alignment needed) to float32.
/// Throws kUnsupported for another dtype.
VITRINE_API void widen_to_f32(const void* data, DType dtype, int64_t count, float* out);

}  // namespace vitrine
