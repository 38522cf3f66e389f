// SPDX-License-Identifier: Apache-2.0
// compressed-tensors' `mxfp4-pack-quantized` and `nvfp4-pack-quantized`: {base}.weight_packed, two
// numbers of E2M1 a byte, the even column low, and .weight_scale, a byte for each group: an
// exponent of two with bias 127, or E4M3 beside .weight_global_scale, which divides them.
#include <cmath>

#include "stored_form.h"

namespace vitrine::compress {
namespace {

constexpr int kExponentBias = 127;

uint8_t exponent_byte(float power) {
  return static_cast<uint8_t>(std::ilogb(power) + kExponentBias);
}

class Fp4Form final : public StoredForm {
 public:
  Fp4Form(std::string_view scale_dtype, DType dtype, bool has_divisor)
      : StoredForm("float", scale_dtype), dtype_(dtype), has_divisor_(has_divisor) {}

  std::string_view strategy(const PlannedTensor&) const override {
    return has_divisor_ ? "tensor_group" : "group";
  }

  void declare(const Declare& declare, const PlannedTensor& planned) const override {
    const int64_t rows = planned.source->shape[0], cols = planned.source->shape[1];
    declare(planned.module + ".weight_packed", DType::kU8, {rows, cols / 2});
    declare(planned.module + ".weight_scale", dtype_, {rows, cols / planned.group_size});
    if (has_divisor_) declare(planned.module + ".weight_global_scale", DType::kF32, {1});
  }

  void write_rows(SafetensorsWriter& writer, const PlannedTensor& planned,
                  const QuantizedMatrix& rows) const override {
    std::vector<uint8_t> packed(rows.values.size() / 2);
    for (size_t i = 0; i < packed.size(); ++i) {
      packed[i] =
          static_cast<uint8_t>((rows.values[2 * i] & 15) | (rows.values[2 * i + 1] & 15) << 4);
    }
    std::vector<uint8_t> scales;
    for (const float scale : rows.scales) {
      scales.push_back(has_divisor_ ? float_to_e4m3(scale) : exponent_byte(scale));
    }
    writer.write(planned.module + ".weight_packed", std::as_bytes(std::span(packed)));
    writer.write(planned.module + ".weight_scale", std::as_bytes(std::span(scales)));
  }

  void write_rest(SafetensorsWriter& writer, const PlannedTensor& planned,
                  const MatrixRest& rest) const override {
    if (!has_divisor_) return;
    writer.write(planned.module + ".weight_global_scale",
                 std::as_bytes(std::span(&rest.divisor, 1)));
  }

 private:
  DType dtype_;
  bool has_divisor_;
};

const Fp4Form kMxfp4Form("torch.uint8", DType::kU8, false);
const StoredFormRegistration kMxfp4Registration("mxfp4-pack-quantized", kMxfp4Form);
const Fp4Form kNvfp4Form("torch.float8_e4m3fn", DType::kF8E4M3, true);
const StoredFormRegistration kNvfp4Registration("nvfp4-pack-quantized", kNvfp4Form);

}  // namespace
}  // namespace vitrine::compress
