// SPDX-License-Identifier: Apache-2.0
// `quant_method: auto-round`: `packing_format` says whose layout it is, `extra_config` which
// modules have other bits or groups.
#include <map>

#include "gptq_config.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

class AutoRoundConfig final : public QuantizationConfig {
 public:
  explicit AutoRoundConfig(const Fields& fields) {
    const std::string packing = fields.string("packing_format").value_or("auto_round");
    if (fields.string("data_type").value_or("int") != "int") {
      refuse_format(fields, "data_type", "is no integer",
                    "format 'llm_compressor' of auto-round for 4-bit and 8-bit floats "
                    "(AutoRound(...).quantize_and_save(format='llm_compressor'))");
    }
    if (fields.find("rotation_config") != nullptr) {
      refuse_format(fields, "rotation_config", "rotates activations while the model runs",
                    "a model quantized without rotations");
    }
    if (packing.find("awq") != packing.npos) {
      scheme_.format = "auto_round:auto_awq";
      scheme_.layout = &awq_layout();
    } else if (packing == "auto_round:auto_gptq" || packing == "auto_round:gptq") {
      scheme_.format = "auto_round:auto_gptq";
      scheme_.layout = &gptq_v1_layout();
    } else if (packing == "auto_round" || packing.starts_with("auto_round:gptqmodel") ||
               packing.starts_with("auto_round:exllamav2") ||
               packing.starts_with("auto_round:triton")) {
      scheme_.format = "auto_round";
      scheme_.layout = &gptq_v2_layout();
    } else {
      refuse_format(fields, "packing_format", "no reader here knows",
                    "'auto_round', 'auto_round:auto_gptq' or 'auto_round:auto_awq' "
                    "(AutoRound(...).quantize_and_save(format='auto_round'))");
    }
    read_bits(fields, scheme_);
    require_gptq_bits(fields);
    if (const auto extra = fields.object("extra_config")) {
      for (const auto& [name, value] : fields.find("extra_config")->items()) {
        const std::optional<Fields> own = extra->object(name);
        if (!own) extra->bad(name, "an object of fields");
        rules_.push_back({NamePattern("re:" + name, extra->place()), name, read_own(*own)});
      }
    }
  }

  std::optional<QuantizedModule> find(std::string_view module_name) const override {
    for (const Rule& rule : rules_) {
      if (rule.name == module_name) return rule.scheme;
    }
    for (const Rule& rule : rules_) {
      if (rule.pattern.matches(module_name)) return rule.scheme;
    }
    return scheme_;
  }

 private:
  struct Rule {
    NamePattern pattern;
    std::string name;
    std::optional<QuantizedModule> scheme;  ///< none: not quantized
  };

  static void read_bits(const Fields& fields, QuantizedModule& scheme) {
    read_gptq_bits(fields, scheme);
    const bool is_awq = scheme.layout == &awq_layout();
    if (is_awq && scheme.bits != 0 && scheme.bits != 4) fields.unsupported("bits", "4");
  }

  /// Reads a module's own fields; modules with more than 8 bits are left as they were.
  std::optional<QuantizedModule> read_own(const Fields& own) const {
    if (own.integer("bits", 1, 64).value_or(4) > 8) return std::nullopt;
    QuantizedModule scheme = scheme_;
    read_bits(own, scheme);
    return scheme;
  }

  QuantizedModule scheme_;
  std::vector<Rule> rules_;
};

const QuantMethodFile kAutoRoundMethod("auto-round", &read_as<AutoRoundConfig>);
const QuantMethodFile kIntelAutoRoundMethod("intel/auto-round", &read_as<AutoRoundConfig>);

}  // namespace
}  // namespace vitrine::checkpoint
