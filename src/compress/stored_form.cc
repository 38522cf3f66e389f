// SPDX-License-Identifier: Apache-2.0
#include "stored_form.h"

#include <cstring>

#include "core/registry.h"

namespace vitrine::compress {
namespace {

constexpr std::string_view kInputScale = ".input_scale";

core::Registry<std::string, const StoredForm*>& registered_forms() {
  static core::Registry<std::string, const StoredForm*> forms("layout");
  return forms;
}

bool holds_input_scale(const PlannedTensor& planned) {
  return planned.method->activations == ActivationUse::kStatic;
}

}  // namespace

StoredFormRegistration::StoredFormRegistration(std::string_view layout, const StoredForm& form) {
  registered_forms().add(std::string(layout), &form);
}

const StoredForm& stored_form(const QuantMethod& method) {
  if (const auto* found = registered_forms().find(method.layout)) return **found;
  throw Error(ErrorKind::kInternal,
              "scheme '" + method.name + "' has no layout; expected a registered one");
}

std::vector<std::byte> narrow(std::span<const float> values, DType dtype) {
  const size_t size = dtype_size(dtype);
  std::vector<std::byte> bytes(values.size() * size);
  if (dtype == DType::kF32) {
    if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = dtype == DType::kF16 ? float_to_f16(values[i]) : float_to_bf16(values[i]);
    std::memcpy(bytes.data() + i * size, &bits, size);
  }
  return bytes;
}

void declare_matrix(const Declare& declare, const PlannedTensor& planned) {
  stored_form(*planned.method).declare(declare, planned);
  if (holds_input_scale(planned)) {
    declare(planned.module + std::string(kInputScale), planned.dtype, {1});
  }
}

void write_rows(SafetensorsWriter& writer, const PlannedTensor& planned,
                const QuantizedMatrix& rows) {
  stored_form(*planned.method).write_rows(writer, planned, rows);
}

void write_rest(SafetensorsWriter& writer, const PlannedTensor& planned, const MatrixRest& rest) {
  stored_form(*planned.method).write_rest(writer, planned, rest);
  if (!holds_input_scale(planned)) return;
  const bool is_float = planned.method->number_format == NumberFormat::kE4M3;
  // A matrix that nothing came to has a scale that no input makes infinite.
  const float range = rest.input_range > 0 ? rest.input_range : 1.0f;
  const float scale = range / (is_float ? kLargestE4M3 : kLargestInt8);
  writer.write(planned.module + std::string(kInputScale), narrow({&scale, 1}, planned.dtype));
}

}  // namespace vitrine::compress
