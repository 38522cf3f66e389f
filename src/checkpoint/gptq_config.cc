// SPDX-License-Identifier: Apache-2.0
// `quant_method: gptq`, as AutoGPTQ and GPTQModel write it: which modules are quantized shows in
// their tensors; `dynamic` gives some of them, by expressions, other bits and groups, or none.
#include "gptq_config.h"

#include "text.h"

namespace vitrine::checkpoint {

void read_gptq_bits(const Fields& fields, QuantizedModule& scheme) {
  const std::optional<int64_t> bits = fields.integer("bits", 1, 64);
  if (bits) {
    if (*bits < 2 || *bits > 8) fields.unsupported("bits", "2 to 8");
    scheme.bits = static_cast<int>(*bits);
  }
  if (fields.find("group_size") != nullptr) {
    scheme.group_size = read_group_size(fields, {"group_size"});
  }
  scheme.symmetric = fields.boolean("sym").value_or(scheme.symmetric);
}

void require_gptq_bits(const Fields& fields) {
  if (fields.find("bits") == nullptr) fields.bad("bits", "2 to 8");
  if (fields.find("group_size") == nullptr) fields.bad("group_size", "a group size");
}

namespace {

/// Says whether `meta.quantizer`, "gptqmodel:7.3.4" or a list of such, names GPTQModel.
bool is_of_gptqmodel(const Fields& fields) {
  const std::optional<Fields> meta =
      fields.find("meta") != nullptr && fields.find("meta")->is_object() ? fields.object("meta")
                                                                         : std::nullopt;
  const nlohmann::json* quantizer = meta ? meta->find("quantizer") : nullptr;
  return quantizer != nullptr && quantizer->dump().find("gptqmodel") != std::string::npos;
}

class GptqConfig final : public QuantizationConfig {
 public:
  explicit GptqConfig(const Fields& fields) {
    const auto [field, format] = first_string(fields, {"checkpoint_format", "format"}, "gptq");
    if (format == "gptq") {
      scheme_.format = "gptq";
      scheme_.layout = is_of_gptqmodel(fields) ? &gptqmodel_v1_layout() : &gptq_v1_layout();
    } else if (format == "gptq_v2") {
      scheme_.format = "gptq_v2";
      scheme_.layout = &gptq_v2_layout();
    } else if (format == "gptq_p") {
      scheme_.format = "gptq_p";
      scheme_.layout = &gptq_p_layout();
    } else {
      refuse_format(fields, field, "is stored in the order of one GPU kernel", kWriteGptqAgain);
    }
    if (fields.boolean("is_marlin_format").value_or(false)) {
      refuse_format(fields, "is_marlin_format", "is stored in the order of one GPU kernel",
                    kWriteGptqAgain);
    }
    if (fields.find("pack_dtype") != nullptr) expect_string(fields, "pack_dtype", "int32");
    read_gptq_bits(fields, scheme_);
    require_gptq_bits(fields);
    fields.boolean("desc_act");  // how an order shows is in the tensors: g_idx
    if (const auto dynamic = fields.object("dynamic")) {
      for (const auto& [name, value] : fields.find("dynamic")->items()) add_rule(*dynamic, name);
    }
  }

  std::optional<QuantizedModule> find(std::string_view module_name) const override {
    for (const Rule& rule : rules_) {
      if (rule.pattern.matches(module_name)) return rule.scheme;
    }
    return scheme_;
  }

 private:
  struct Rule {
    NamePattern pattern;
    std::optional<QuantizedModule> scheme;  ///< none: not quantized
  };

  /// Adds a rule: "-:expression" leaves modules out; "+:expression", or the expression alone,
  /// changes fields.
  void add_rule(const Fields& dynamic, const std::string& name) {
    const bool is_left_out = name.starts_with("-:");
    const std::string expression = is_left_out || name.starts_with("+:") ? name.substr(2) : name;
    Rule rule = {NamePattern("re:" + expression, dynamic.place()), std::nullopt};
    if (!is_left_out) {
      const std::optional<Fields> own = dynamic.object(name);
      if (!own) dynamic.bad(name, "an object of fields");
      rule.scheme = scheme_;
      read_gptq_bits(*own, *rule.scheme);
    }
    rules_.push_back(std::move(rule));
  }

  QuantizedModule scheme_;
  std::vector<Rule> rules_;
};

const QuantMethodFile kGptqMethod("gptq", &read_as<GptqConfig>);

}  // namespace
}  // namespace vitrine::checkpoint
