// SPDX-License-Identifier: Apache-2.0
// `quant_method: awq`, as AutoAWQ and GPTQModel write it in version "gemm". Which modules are
// quantized shows in their tensors; `modules_to_not_convert` are parts of names.
#include <algorithm>
#include <cctype>

#include "quantization_config.h"

namespace vitrine::checkpoint {
namespace {

class AwqConfig final : public QuantizationConfig {
 public:
  explicit AwqConfig(const Fields& fields) {
    auto [field, version] =
        first_string(fields, {"version", "checkpoint_format", "format"}, "gemm");
    std::ranges::transform(version, version.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (version != "gemm") {
      refuse_format(fields, field, "is stored in the order of one GPU kernel",
                    "version 'gemm': AutoAWQForCausalLM.quantize(..., quant_config={'version': "
                    "'GEMM', ...}) of the float model writes it");
    }
    if (fields.integer({"bits", "w_bit"}, 1, 64).value_or(4) != 4) {
      fields.unsupported("bits", "4");
    }
    fields.boolean("zero_point");
    scheme_ = {.bits = 4,
               .group_size = read_group_size(fields, {"group_size", "q_group_size"}),
               .symmetric = false,
               .format = "awq",
               .layout = &awq_layout()};
    left_out_ = fields.strings("modules_to_not_convert");
  }

  std::optional<QuantizedModule> find(std::string_view module_name) const override {
    const bool is_left_out = std::ranges::any_of(left_out_, [&](const std::string& part) {
      return module_name.find(part) != module_name.npos;
    });
    return is_left_out ? std::nullopt : std::optional(scheme_);
  }

 private:
  QuantizedModule scheme_;
  std::vector<std::string> left_out_;
};

const QuantMethodFile kAwqMethod("awq", &read_as<AwqConfig>);

}  // namespace
}  // namespace vitrine::checkpoint
