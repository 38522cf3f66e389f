// SPDX-License-Identifier: Apache-2.0
// `quant_method: fp8` of published folders of 8-bit floats, and `mxfp4` of gpt_oss.
#include "quantization_config.h"

namespace vitrine::checkpoint {
namespace {

/// "fp8" of published folders: one way for all modules. Which are of another type shows in their
/// tensors.
class Fp8Config final : public QuantizationConfig {
 public:
  explicit Fp8Config(const Fields& fields) {
    if (fields.find("fmt") != nullptr) expect_string(fields, "fmt", "e4m3");
    scheme_ = {.number_format = NumberFormat::kE4M3,
               .bits = 8,
               .block_rows = 0,  // one scale for a matrix
               .format = "fp8",
               .layout = &float8_layout()};
    if (fields.find("weight_block_size") != nullptr) {
      read_float_block(fields, "weight_block_size", scheme_);
    }
  }
  std::optional<QuantizedModule> find(std::string_view) const override { return scheme_; }

 private:
  QuantizedModule scheme_;
};

const QuantMethodFile kFp8("fp8", [](const Fields& fields) {
  return std::unique_ptr<const QuantizationConfig>(new Fp8Config(fields));
});

/// gpt_oss: which tensors are in blocks shows in their names.
class Mxfp4Config final : public QuantizationConfig {
 public:
  std::optional<QuantizedModule> find(std::string_view) const override { return std::nullopt; }
};

const QuantMethodFile kMxfp4("mxfp4", [](const Fields&) {
  return std::unique_ptr<const QuantizationConfig>(new Mxfp4Config());
});

}  // namespace
}  // namespace vitrine::checkpoint
