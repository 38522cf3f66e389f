// SPDX-License-Identifier: Apache-2.0
// compressed-tensors' `float-quantized` and `int-quantized`: {base}.weight, a byte a number, and
// .weight_scale, one for each row.
#include "stored_form.h"

namespace vitrine::compress {
namespace {

class ByteForm final : public StoredForm {
 public:
  ByteForm(std::string_view type, DType dtype) : StoredForm(type, ""), dtype_(dtype) {}

  void declare(const Declare& declare, const PlannedTensor& planned) const override {
    const int64_t rows = planned.source->shape[0];
    declare(planned.module + ".weight", dtype_, {rows, planned.source->shape[1]});
    declare(planned.module + ".weight_scale", planned.dtype, {rows, 1});
  }

  void write_rows(SafetensorsWriter& writer, const PlannedTensor& planned,
                  const QuantizedMatrix& rows) const override {
    writer.write(planned.module + ".weight", std::as_bytes(std::span(rows.values)));
    std::vector<float> scales;  // floats repeat a row's for each group
    for (int64_t row = 0; row < rows.rows; ++row) {
      scales.push_back(rows.scales[static_cast<size_t>(row * rows.groups())]);
    }
    writer.write(planned.module + ".weight_scale", narrow(scales, planned.dtype));
  }

 private:
  DType dtype_;
};

const ByteForm kFloat8Form("float", DType::kF8E4M3);
const StoredFormRegistration kFloat8Registration("float-quantized", kFloat8Form);
const ByteForm kInt8Form("int", DType::kI8);
const StoredFormRegistration kInt8Registration("int-quantized", kInt8Form);

}  // namespace
}  // namespace vitrine::compress
