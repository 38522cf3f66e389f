// SPDX-License-Identifier: Apache-2.0
// Private to the library: how the tensors of a quantized module hold its numbers, one class a
// layout.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// Returns the module whose products one kernel computes with this one's: of a gate the up
/// projection, of an up projection the gate; empty where there is none.
std::string partner_of(const std::string& module);

/// Returns the path of a tensor's file.
const std::string& file_of(const Checkpoint& checkpoint, const TensorInfo& info);
/// Throws kBadFile: "<path>: tensor '<name>' is <dtype> <shape>; expected <expected>".
[[noreturn]] void refuse_tensor(const std::string& path, const TensorInfo& info,
                                const std::string& expected);
/// Throws kBadFile: "<file>: element <element> of tensor '<name>' <is>".
[[noreturn]] void refuse_element(const Checkpoint& checkpoint, const TensorInfo& info,
                                 int64_t element, const std::string& is);
/// Says whether a tensor is a matrix with elements, of one of the types.
bool is_matrix(const TensorInfo& info, std::initializer_list<DType> dtypes);

/// Types of scales, and of matrices that are not quantized.
inline constexpr std::initializer_list<DType> kFloatTypes = {DType::kF32, DType::kF16,
                                                             DType::kBF16};

/// A module whose tensors are looked for, and how messages name them.
struct ModulePlace {
  const Checkpoint& checkpoint;
  std::string base;               ///< "model.layers.0.self_attn.q_proj"
  const TensorInfo& numbers;      ///< what Checkpoint::find_quantized found
  const QuantizedModule& scheme;  ///< what the config says of it
  int64_t stacked_columns = 0;    ///< of a part of a stack of experts that says them; else 0

  const TensorInfo* find(std::string_view suffix) const;
  /// Throws kBadFile for one that is missing.
  const TensorInfo& require(std::string_view suffix) const;
  /// Refuses a tensor as refuse_tensor does.
  [[noreturn]] void refuse(const TensorInfo& info, const std::string& expected) const;
  /// Refuses a tensor of another shape, or of none of the types. `whence` ends the message.
  void check(const TensorInfo& info, std::initializer_list<DType> dtypes,
             const std::vector<int64_t>& shape,
             std::string_view whence = "quantization_config") const;
  /// Returns tensors with the name, bits, extents and groups of the scheme, and `numbers` in it.
  QuantizedTensors tensors(int64_t rows, int64_t cols) const;
  /// Reads the tensor of that suffix, I32 [cols], into column_groups; none where columns of a group
  /// lie side by side, or where there is no such tensor. Throws kBadFile for what is no group.
  void read_column_groups(std::string_view suffix, QuantizedTensors& tensors) const;
};

/// A way to keep a module's numbers. Immutable, thread-safe; objects live as long as the program.
class ModuleLayout {
 public:
  ModuleLayout() = default;
  ModuleLayout(const ModuleLayout&) = delete;
  ModuleLayout& operator=(const ModuleLayout&) = delete;
  virtual ~ModuleLayout() = default;

  /// Returns how the name of the tensor of numbers ends: ".qweight".
  virtual std::string_view suffix() const = 0;
  /// Finds and checks a module's tensors. Throws kBadFile, kUnsupported.
  virtual QuantizedTensors find(const ModulePlace& place) const = 0;
  /// Returns the name of the tensor that column_groups are read from.
  virtual std::string_view order_name() const { return "g_idx"; }
  /// Returns what files fill up the rows of a matrix to a multiple of.
  virtual int64_t row_multiple() const { return 1; }

  // Rows [row_begin, row_end). All throw kIo, kBadFile; kInvalidArgument for what a layout hasn't.

  /// Reads integers as QuantizedRows has them.
  virtual std::vector<int32_t> read_words(const Checkpoint& checkpoint,
                                          const QuantizedTensors& tensors, int64_t row_begin,
                                          int64_t row_end) const;
  /// Reads a scale for each row and group of the file.
  virtual std::vector<float> read_scales(const Checkpoint& checkpoint,
                                         const QuantizedTensors& tensors, int64_t row_begin,
                                         int64_t row_end) const;
  /// Reads a zero point for each row and group of the file; none where all are zero.
  virtual std::vector<int8_t> read_zero_points(const Checkpoint& checkpoint,
                                               const QuantizedTensors& tensors, int64_t row_begin,
                                               int64_t row_end) const;
  /// Reads rows as blocks (QuantizedTensors::blocks).
  virtual std::vector<std::byte> read_blocks(const Checkpoint& checkpoint,
                                             const QuantizedTensors& tensors, int64_t row_begin,
                                             int64_t row_end) const;
  /// Reads rows as float32. This one reads rows of integers.
  virtual std::vector<float> read_floats(const Checkpoint& checkpoint,
                                         const QuantizedTensors& tensors, int64_t row_begin,
                                         int64_t row_end) const;
};

// The layouts, by the tensor that holds the numbers.
const ModuleLayout& packed_layout();        ///< weight_packed of compressed-tensors, I32
const ModuleLayout& padded_layout();        ///< the same, of versions up to 0.17
const ModuleLayout& float8_layout();        ///< weight, F8_E4M3
const ModuleLayout& int8_layout();          ///< weight, I8
const ModuleLayout& awq_layout();           ///< qweight of AWQ's version "gemm"
const ModuleLayout& gptq_v1_layout();       ///< qweight of GPTQ, zero points less one
const ModuleLayout& gptqmodel_v1_layout();  ///< the same, ones taken from whole words
const ModuleLayout& gptq_v2_layout();       ///< the same, zero points as they are
const ModuleLayout& gptq_p_layout();        ///< the same in planes of bits
const ModuleLayout& nvfp4_layout();         ///< weight_packed of compressed-tensors, U8: see there
const ModuleLayout& modelopt_nvfp4_layout();  ///< weight of ModelOpt, U8
const ModuleLayout& mxfp4_layout();           ///< weight_packed, U8: blocks once the folder is open
const ModuleLayout& mxfp8_layout();           ///< weight, F8_E4M3 with E8M0 scales of 32 columns
const ModuleLayout& sparse24_layout();        ///< compressed: what two of four columns hold
const ModuleLayout& exl2_layout();            ///< q_weight of exllamav2, bits that differ by group

/// Drops the rows that a file has behind the `rows` of a matrix, to fill them up.
void drop_filling(QuantizedTensors& tensors, int64_t rows);

/// Sets how the rows of a module of integers are read: its bits, its group, the type of its scales,
/// or that they are floats. `stored_bits`, `stored_group`, `scales` and `column_groups` are set.
void choose_reading(QuantizedTensors& tensors);

/// Returns what a group of `stored` columns is split into for the kernels: 128, 64 or 32 columns
/// with the same scale; 0 where no such number divides it.
int kernel_group(int64_t stored, int64_t cols);

/// Says where the numbers of a row or column of words begin.
enum class BitPacking : uint8_t {
  kDense,   ///< one stream of bits
  kPadded,  ///< each word holds floor(32 / bits) whole numbers
  kPlanes,  ///< 32 numbers in `bits` words: their low bits first (gptq_p)
};
/// Returns the words of `count` numbers.
int64_t packed_word_count(int64_t count, int bits, BitPacking packing);
/// Unpacks numbers [first, first + count) of a line of words that lie `stride` apart.
void unpack_numbers(const uint32_t* words, int64_t stride, int64_t first, int64_t count, int bits,
                    BitPacking packing, uint8_t* out);
/// Packs rows of numbers of `stored_bits`, offset by half their range, as those of `bits`.
std::vector<int32_t> pack_wider_numbers(std::span<const uint8_t> numbers, int64_t rows,
                                        const QuantizedTensors& tensors);

/// Reads elements [first, first + count) of a tensor whose type has the size of T. Throws kIo.
template <typename T>
std::vector<T> read_elements(const Checkpoint& checkpoint, const TensorInfo& info, int64_t first,
                             int64_t count) {
  std::vector<T> elements(static_cast<size_t>(count));
  checkpoint.read(info, static_cast<uint64_t>(first) * sizeof(T),
                  std::as_writable_bytes(std::span(elements)));
  return elements;
}
/// Reads columns [begin, end) of all lines of a matrix of I32: [lines, end - begin]. Throws kIo.
std::vector<uint32_t> read_word_columns(const Checkpoint& checkpoint, const TensorInfo& info,
                                        int64_t begin, int64_t end);
/// Reads elements [first, first + count) of a tensor of floats, all of which must be finite. Throws
/// kBadFile, kIo.
std::vector<float> read_finite(const Checkpoint& checkpoint, const TensorInfo& info, int64_t first,
                               int64_t count);
/// Reads columns [begin, end) of a matrix [lines, width] of floats as [end - begin, lines]. Throws
/// as read_finite.
std::vector<float> read_finite_columns(const Checkpoint& checkpoint, const TensorInfo& info,
                                       int64_t begin, int64_t end);

}  // namespace vitrine::checkpoint
