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
    const bool has_version = fields.find("version") != nullptr;
    std::string version = fields.string("version").value_or(
        fields.string("checkpoint_format").value_or(fields.string("format").value_or("gemm")));
    std::ranges::transform(version, version.begin(),
                           [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (version != "gemm") {
      refuse_format(fields,
                    has_version                                   ? "version"
                    : fields.find("checkpoint_format") != nullptr ? "checkpoint_format"
                                                                  : "format",
                    "is stored in the order of one GPU kernel",
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

const QuantMethodFile kAwqMethod("awq", [](const Fields& fields) {
  return std::unique_ptr<const QuantizationConfig>(new AwqConfig(fields));
});

}  // namespace
}  // namespace vitrine::checkpoint
