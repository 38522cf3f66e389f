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
    if (fields.find("weight_block_size") != nullptr) {
      read_float_block(fields, "weight_block_size", scheme_);
    }
  }
  std::optional<QuantizedModule> find(std::string_view) const override { return scheme_; }

 private:
  QuantizedModule scheme_ = float8_module("fp8", 0);  // one scale for a matrix
};

const QuantMethodFile kFp8("fp8", &read_as<Fp8Config>);

/// gpt_oss: which tensors are in blocks shows in their names.
class Mxfp4Config final : public QuantizationConfig {
 public:
  explicit Mxfp4Config(const Fields&) {}
  std::optional<QuantizedModule> find(std::string_view) const override { return std::nullopt; }
};

const QuantMethodFile kMxfp4("mxfp4", &read_as<Mxfp4Config>);

}  // namespace
}  // namespace vitrine::checkpoint
