// SPDX-License-Identifier: Apache-2.0
// compressed-tensors' `pack-quantized`: {base}.weight_packed of int32 words, .weight_scale,
// .weight_shape and, of asymmetric matrices, .weight_zero_point, packed along the rows.
#include "quant/pack.h"
#include "stored_form.h"

namespace vitrine::compress {
namespace {

class PackedForm final : public StoredForm {
 public:
  PackedForm() : StoredForm("int", "") {}

  void declare(const Declare& declare, const PlannedTensor& planned) const override {
    const int64_t rows = planned.source->shape[0], cols = planned.source->shape[1];
    const int bits = planned.method->bits;
    const int64_t groups = cols / planned.group_size;
    declare(planned.module + ".weight_packed", DType::kI32, {rows, packed_words(cols, bits)});
    declare(planned.module + ".weight_scale", planned.dtype, {rows, groups});
    declare(planned.module + ".weight_shape", DType::kI64, {2});
    if (planned.method->symmetric) return;
    declare(planned.module + ".weight_zero_point", DType::kI32, {packed_words(rows, bits), groups});
  }

  void write_rows(SafetensorsWriter& writer, const PlannedTensor& planned,
                  const QuantizedMatrix& rows) const override {
    const std::vector<int32_t> packed = pack_int32(rows.values, rows.rows, rows.cols, rows.bits);
    writer.write(planned.module + ".weight_packed", std::as_bytes(std::span(packed)));
    writer.write(planned.module + ".weight_scale", narrow(rows.scales, planned.dtype));
    if (planned.method->symmetric) return;
    const std::vector<int32_t> zero_points =
        pack_int32_rows(rows.zero_points, rows.rows, rows.groups(), rows.bits);
    writer.write(planned.module + ".weight_zero_point", std::as_bytes(std::span(zero_points)));
  }

  void write_rest(SafetensorsWriter& writer, const PlannedTensor& planned,
                  const MatrixRest&) const override {
    const int64_t shape[2] = {planned.source->shape[0], planned.source->shape[1]};
    writer.write(planned.module + ".weight_shape", std::as_bytes(std::span(shape)));
  }
};

const PackedForm kPackedForm;
const StoredFormRegistration kPackedRegistration("pack-quantized", kPackedForm);

}  // namespace
}  // namespace vitrine::compress
