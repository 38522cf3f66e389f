// SPDX-License-Identifier: Apache-2.0
// A weight matrix of a checkpoint, from its place in the file to its place in memory.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_kernels.h"
#include "ops/plan.h"
#include "vitrine/checkpoint.h"

namespace vitrine::model {

/// Returns the tensor behind a module whose blocks a fused kernel reads without loss, or null. Gate
/// and up projection run in one kernel, so each has such a tensor only where the other has.
const TensorInfo* find_packed_blocks(const Checkpoint& checkpoint, const std::string& module);

/// A matrix whose rows are floats, blocks or quantized numbers. Rows are read one by one or all,
/// and packed where they are no floats.
struct StoredMatrix {
  const TensorInfo* info = nullptr;           // the checkpoint's tensor of the (quantized) numbers
  std::optional<QuantizedTensors> quantized;  // where `quantization_config` says what they mean
  kernels::Weight weight;                     // its pointers are null until place()
  kernels::WeightBytes bytes;
  int64_t stored_row_bytes = 0;
  // The file's columns in the order that they have here; null: in the file's.
  std::shared_ptr<const std::vector<int32_t>> column_order;
  // The scale of int8 activations that the file asks for, as InputForm has it, if the op takes it.
  float row_scale = ops::InputForm::kByGroup;
  int64_t first_row = 0;               // row of the file that is row 0 here
  const int32_t* row_order = nullptr;  // row i is row_order[i] of the file; null: first_row + i
  std::byte *data = nullptr, *scales = nullptr, *offsets = nullptr;

  /// Returns what the matrix is multiplied with.
  ops::InputForm input_form() const {
    return {.order = column_order ? column_order->data() : nullptr, .row_scale = row_scale};
  }
  /// Returns each part's bytes, up to a whole cache line.
  size_t num_bytes() const;
  /// Returns what reading all of it takes from the file.
  uint64_t file_bytes() const;
  /// Drops all rows but [begin, end), before it is placed or mapped.
  void keep_rows(int64_t begin, int64_t end);
  /// Puts it into `memory`, which holds num_bytes() and is 64-byte aligned.
  void place(std::byte* memory);
  /// Returns the bytes that have to be read when the rest is mapped, since they cannot be used
  /// where the file has them: zero points, and scales of 8-bit floats.
  size_t bytes_beside_map() const;
  /// Points the handle into the file's mapping, and reads those bytes to `beside`; false where the
  /// file has the rows in another order. Throws kIo, kBadFile.
  bool map(const Checkpoint& checkpoint, std::byte* beside);
};

/// Throws kBadFile where a quantized matrix has another shape than the config says.
void check_matrix_shape(const Checkpoint& checkpoint, const std::string& module, int64_t found_rows,
                        int64_t found_cols, int64_t rows, int64_t cols);

/// Finds a matrix. Modules of folders that read as blocks or as floats are blocks where the kernels
/// take these, and those whose columns have an order of their own (act-order) are integers in it
/// where the op takes forms of its input. Throws kBadFile for a missing tensor or another shape,
/// kUnsupported for another dtype.
StoredMatrix find_stored_matrix(const Checkpoint& checkpoint, const std::string& module,
                                int64_t rows, int64_t cols, bool takes_blocks = true,
                                bool takes_form = false);
/// Makes a matrix [rows, cols] of a tensor's blocks, whatever extents the tensor's rows have;
/// nothing where it has none that kernels read, or whole ones do not make a row.
std::optional<StoredMatrix> find_block_matrix(const TensorInfo& info, int64_t rows, int64_t cols);
/// Makes the error of a matrix that has a scale that is infinite or no number, or a NaN among 8-bit
/// floats; row -1: unknown.
Error bad_number_error(const Checkpoint& checkpoint, const StoredMatrix& matrix, int64_t row);
/// Reads rows [row_begin, row_end) to their place; row_begin is a multiple of 16, row_end too
/// unless it is the last. Where rows have an order, these are all of them. `buffer` is scratch.
/// Throws kIo, and kBadFile for a scale that is not finite or a number that is none.
void read_stored_rows(const kernels::CpuKernels& kernel, const Checkpoint& checkpoint,
                      const StoredMatrix& matrix, int64_t row_begin, int64_t row_end,
                      std::vector<std::byte>& buffer);

}  // namespace vitrine::model
