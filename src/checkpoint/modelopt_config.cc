// SPDX-License-Identifier: Apache-2.0
// `quant_method: modelopt` of NVIDIA's ModelOpt: 8-bit floats with one scale a matrix, or NVFP4. In
// config.json, or in hf_quant_config.json under "quantization".
#include "name_pattern.h"
#include "quantization_config.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

/// Returns the expression for a name with '*' for any part, which all of a name must match. A name
/// stands for the modules below it, too.
std::string expression_of(const std::string& wildcard) {
  std::string expression = "re:";
  for (const char c : wildcard) {
    if (c == '*') {
      expression += ".*";
    } else {
      if (std::string_view(".+?()[]{}^$|\\").find(c) != std::string_view::npos) expression += '\\';
      expression += c;
    }
  }
  return expression + "(\\..*)?";
}

class ModelOptConfig final : public QuantizationConfig {
 public:
  explicit ModelOptConfig(const Fields& fields) {
    const std::string algorithm = fields.string("quant_algo").value_or("");
    if (algorithm == "MIXED_PRECISION") {
      const auto layers = fields.object("quantized_layers");
      if (!layers) fields.bad("quantized_layers", "an object of modules");
      for (const auto& [name, value] : fields.find("quantized_layers")->items()) {
        const std::optional<Fields> own = layers->object(name);
        if (!own) layers->bad(name, "an object of fields");
        rules_.push_back({NamePattern(expression_of(name), layers->place(), true),
                          scheme_of(*own, own->string("quant_algo").value_or(""))});
      }
    } else {
      rules_.push_back({NamePattern("re:.*", fields.place(), true), scheme_of(fields, algorithm)});
    }
    for (const char* name : {"ignore", "exclude_modules"}) {
      for (const std::string& module : fields.strings(name)) {
        left_out_.emplace_back(expression_of(module), fields.place() + ": " + name, true);
      }
    }
    if (has_content(fields, "kv_cache_scheme") || fields.string("kv_cache_quant_algo")) {
      add_cache_note("kv_cache_quant_algo");
    }
    add_note(
        "activations: the file has scales for them in 4 or 8 bits (input_scale); kernels take "
        "float32 beside floats, which loses nothing");
  }

  std::optional<QuantizedModule> find(std::string_view module_name) const override {
    for (const NamePattern& pattern : left_out_) {
      if (pattern.matches(module_name)) return std::nullopt;
    }
    for (const Rule& rule : rules_) {
      if (rule.pattern.matches(module_name)) return rule.scheme;
    }
    return std::nullopt;
  }

 private:
  struct Rule {
    NamePattern pattern;
    QuantizedModule scheme;
  };

  static QuantizedModule scheme_of(const Fields& fields, const std::string& algorithm) {
    if (algorithm == "FP8") return float8_module("modelopt FP8", 0);
    if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN") return float8_module("modelopt FP8", 1);
    if (algorithm != "NVFP4" && algorithm != "W4A16_NVFP4") {
      refuse_format(fields, "quant_algo", "no reader here knows",
                    "'FP8', 'FP8_PER_CHANNEL_PER_TOKEN', 'NVFP4' or 'W4A16_NVFP4' (ModelOpt's "
                    "hf_ptq.py --qformat fp8 or nvfp4)");
    }
    if (fields.integer("group_size", 1, 1 << 20).value_or(16) != 16) {
      fields.unsupported("group_size", "16");
    }
    return {.bits = 4,
            .group_size = 16,
            .format = "modelopt NVFP4",
            .layout = &modelopt_nvfp4_layout()};
  }

  std::vector<Rule> rules_;
  std::vector<NamePattern> left_out_;
};

const QuantMethodFile kModelOptMethod("modelopt", &read_as<ModelOptConfig>);

}  // namespace
}  // namespace vitrine::checkpoint
