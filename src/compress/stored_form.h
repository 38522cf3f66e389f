// SPDX-License-Identifier: Apache-2.0
// Private to the room: the tensors in which the result holds a quantized matrix, by the layouts of
// compressed-tensors. To add one, write a class and end its file with a StoredFormRegistration.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan.h"

namespace vitrine::compress {

/// Values as they stand on disk in F32, F16 or BF16, rounded to nearest.
std::vector<std::byte> narrow(std::span<const float> values, DType dtype);

/// Declares a tensor of the result.
using Declare =
    std::function<void(const std::string& name, DType dtype, const std::vector<int64_t>& shape)>;

/// The magnitudes that a folder's scale of activations becomes: it is a range divided by one of
/// these, of int8 and of E4M3.
inline constexpr float kLargestInt8 = 127.5f, kLargestE4M3 = 448.0f;

/// What stands once for a matrix, beside its rows.
struct MatrixRest {
  float divisor = 1.0f;   ///< QuantizedMatrix::divisor
  float input_range = 0;  ///< of a calibration; 0: unknown
};

/// A layout. Immutable, thread-safe; objects live as long as the program.
class StoredForm {
 public:
  /// `type` and `scale_dtype` are what quantization_config calls them; the latter may be empty.
  StoredForm(std::string_view type, std::string_view scale_dtype)
      : type_(type), scale_dtype_(scale_dtype) {}
  StoredForm(const StoredForm&) = delete;
  StoredForm& operator=(const StoredForm&) = delete;
  virtual ~StoredForm() = default;

  std::string_view type() const { return type_; }
  std::string_view scale_dtype() const { return scale_dtype_; }
  /// Returns how quantization_config calls what shares a scale.
  virtual std::string_view strategy(const PlannedTensor& planned) const {
    return planned.group_size == 0 ? "channel" : "group";
  }
  /// Declares all tensors of the matrix but the scale of its inputs.
  virtual void declare(const Declare& declare, const PlannedTensor& planned) const = 0;
  /// Writes the next rows of a matrix: a multiple of 8, unless they are its last.
  virtual void write_rows(SafetensorsWriter& writer, const PlannedTensor& planned,
                          const QuantizedMatrix& rows) const = 0;
  /// Writes what stands once for a matrix.
  virtual void write_rest(SafetensorsWriter&, const PlannedTensor&, const MatrixRest&) const {}

 private:
  std::string_view type_, scale_dtype_;
};

/// Returns the form of a method's layout. Throws kInternal for one that nobody registered.
const StoredForm& stored_form(const QuantMethod& method);

/// A static object of this type makes a form known by the name of its layout.
struct StoredFormRegistration {
  StoredFormRegistration(std::string_view layout, const StoredForm& form);
};

void declare_matrix(const Declare& declare, const PlannedTensor& planned);
void write_rows(SafetensorsWriter& writer, const PlannedTensor& planned,
                const QuantizedMatrix& rows);
void write_rest(SafetensorsWriter& writer, const PlannedTensor& planned, const MatrixRest& rest);

}  // namespace vitrine::compress
