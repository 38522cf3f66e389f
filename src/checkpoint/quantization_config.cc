// SPDX-License-Identifier: Apache-2.0
#include "quantization_config.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "text.h"

namespace vitrine::checkpoint {
namespace {

const pcre2_code* as_code(const std::shared_ptr<const void>& code) {
  return static_cast<const pcre2_code*>(code.get());
}

/// A field that other engines use for what Vitrine can't read; absent, null or empty is fine.
void refuse_unless_empty(const Fields& fields, std::string_view name) {
  const nlohmann::json* value = fields.find(name);
  if (value != nullptr && !(value->is_structured() && value->empty())) {
    fields.unsupported(name, "null (Vitrine reads weight-only quantization)");
  }
}

void expect_string(const Fields& fields, std::string_view name, std::string_view expected) {
  if (fields.string(name) != expected) fields.unsupported(name, quote_text(expected));
}

constexpr const char* kPacked = "pack-quantized";
constexpr const char* kFloat = "float-quantized";
constexpr const char* kFormats = "'pack-quantized' or 'float-quantized'";

/// Blocks of [rows, columns] that share a scale.
void read_block(const Fields& fields, std::string_view name, const std::vector<int64_t>& block,
                QuantizedModule& scheme) {
  if (block.size() != 2) fields.bad(name, "a list of two sizes");
  if (block[1] % 128 != 0) fields.unsupported(name, "blocks of a multiple of 128 columns");
  scheme.block_rows = static_cast<int>(block[0]);
  scheme.group_size = static_cast<int>(block[1]);
}

QuantizedModule read_float_weights(const Fields& weights) {
  QuantizedModule scheme = {NumberFormat::kE4M3, 8, 0, 0};
  if (weights.required_integer("num_bits", 1, 64) != 8) weights.unsupported("num_bits", "8");
  expect_string(weights, "type", "float");
  if (!weights.boolean("symmetric").value_or(true)) weights.unsupported("symmetric", "true");
  const std::string strategy = weights.string("strategy").value_or("");
  if (strategy == "channel") {
    scheme.block_rows = 1;
  } else if (strategy == "group") {
    read_block(weights, "group_size", {1, weights.required_integer("group_size", 1, 1 << 20)},
               scheme);
  } else if (strategy == "block") {
    read_block(weights, "block_structure", weights.integers("block_structure", 1, 1 << 20, 2),
               scheme);
  } else if (strategy != "tensor") {
    weights.unsupported("strategy", "'tensor', 'channel', 'group' or 'block'");
  }
  return scheme;
}

QuantizedModule read_integer_weights(const Fields& weights) {
  QuantizedModule scheme;
  scheme.bits = static_cast<int>(weights.required_integer("num_bits", 1, 64));
  if (scheme.bits != 4 && scheme.bits != 8) weights.unsupported("num_bits", "4 or 8");
  expect_string(weights, "type", "int");
  scheme.symmetric = weights.boolean("symmetric").value_or(true);
  if (weights.find("strategy") != nullptr) expect_string(weights, "strategy", "group");
  scheme.group_size = static_cast<int>(weights.required_integer("group_size", -1, 1 << 30));
  if (scheme.group_size != 32 && scheme.group_size != 64 && scheme.group_size != 128) {
    weights.unsupported("group_size", "32, 64 or 128");
  }
  refuse_unless_empty(weights, "block_structure");
  return scheme;
}

}  // namespace

NamePattern::NamePattern(const std::string& text, const std::string& place, bool whole)
    : text_(text), place_(place) {
  if (!text.starts_with("re:")) return;
  const std::string expression = text.substr(3);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      expression.size() > 4096
          ? nullptr
          : pcre2_compile(
                reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C | (whole ? PCRE2_ENDANCHORED : 0), &error,
                &offset, nullptr);
  if (code == nullptr) {
    throw_bad_file(place + ": regular expression " + quote_text(text) +
                   " can't be compiled; expected a valid one of at most 4096 bytes");
  }
  code_ = std::shared_ptr<const void>(
      code, [](const void* p) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(p))); });
}

bool NamePattern::matches(std::string_view name) const {
  if (!is_expression()) return name == text_;
  const std::unique_ptr<pcre2_match_data, decltype(&pcre2_match_data_free)> data(
      pcre2_match_data_create_from_pattern(as_code(code_), nullptr), &pcre2_match_data_free);
  const std::unique_ptr<pcre2_match_context, decltype(&pcre2_match_context_free)> context(
      pcre2_match_context_create(nullptr), &pcre2_match_context_free);
  if (!data || !context) throw Error(ErrorKind::kOutOfMemory, "a match can't be allocated");
  pcre2_set_match_limit(context.get(), 100'000);
  pcre2_set_heap_limit(context.get(), 1024);  // KiB
  const int result = pcre2_match(as_code(code_), reinterpret_cast<PCRE2_SPTR>(name.data()),
                                 name.size(), 0, 0, data.get(), context.get());
  if (result >= 0) return true;
  if (result == PCRE2_ERROR_NOMATCH) return false;
  throw_unsupported(place_ + ": regular expression " + quote_text(text_) +
                    " takes too many steps on " + quote_text(name) + "; expected a simpler one");
}

QuantizationConfig::QuantizationConfig(const Fields& fields) {
  if (fields.string("quant_method") == "fp8") {
    read_fp8(fields);
    return;
  }
  // gpt_oss: which tensors are in blocks shows in their names.
  if (fields.string("quant_method") == "mxfp4") return;
  if (fields.string("quant_method") != "compressed-tensors") {
    fields.unsupported("quant_method", "'compressed-tensors', 'fp8' or 'mxfp4'");
  }
  const std::string format = fields.string("format").value_or("");
  if (format != kPacked && format != kFloat) fields.unsupported("format", kFormats);
  if (const auto status = fields.string("quantization_status");
      status && *status != "compressed" && *status != "frozen") {
    fields.unsupported("quantization_status", "'compressed'");
  }
  refuse_unless_empty(fields, "kv_cache_scheme");
  refuse_unless_empty(fields, "transform_config");
  if (const nlohmann::json* sparsity = fields.find("sparsity_config");
      sparsity != nullptr && !(sparsity->is_object() && sparsity->empty())) {
    expect_string(*fields.object("sparsity_config"), "format", "dense");
  }
  for (const std::string& name : fields.strings("ignore")) {
    ignore_.emplace_back(name, fields.place() + ": ignore");
  }
  const std::optional<Fields> groups = fields.object("config_groups");
  if (!groups) fields.bad("config_groups", "an object of groups");
  for (const auto& [name, group] : fields.find("config_groups")->items()) {
    const std::string place = groups->place() + "." + quote_text(name);
    if (group.is_array()) {
      throw_unsupported(place + ": is a preset; expected targets and weights written out");
    }
    if (!group.is_object()) throw_bad_file(place + ": is not an object; expected one");
    read_group(Fields(group, place), format);
  }
}

void QuantizationConfig::read_fp8(const Fields& fields) {
  if (fields.find("fmt") != nullptr) expect_string(fields, "fmt", "e4m3");
  QuantizedModule scheme = {NumberFormat::kE4M3, 8, 0, 0};  // one scale for a matrix
  if (fields.find("weight_block_size") != nullptr) {
    const std::vector<int64_t> block = fields.integers("weight_block_size", 1, 1 << 20, 2);
    read_block(fields, "weight_block_size", block, scheme);
  }
  float_scale_suffixes_ = {".weight_scale_inv"};
  if (scheme.group_size == 0) float_scale_suffixes_.emplace_back(".weight_scale");
  // Which modules are of another type shows in their tensors.
  targets_.push_back({NamePattern("Linear", fields.place()), scheme});
}

void QuantizationConfig::read_group(const Fields& group, const std::string& format) {
  const std::string own = group.string("format").value_or(format);
  if (own != kPacked && own != kFloat) group.unsupported("format", kFormats);
  const std::optional<Fields> weights = group.object("weights");
  if (!weights) group.bad("weights", "an object");
  refuse_unless_empty(group, "output_activations");
  QuantizedModule scheme;
  if (own == kFloat) {
    // Weights alone are read as 8-bit floats; activations keep more bits than the file asks for.
    scheme = read_float_weights(*weights);
  } else {
    refuse_unless_empty(group, "input_activations");
    scheme = read_integer_weights(*weights);
  }
  if (weights->boolean("dynamic").value_or(false)) weights->unsupported("dynamic", "false");
  // With any other order of the columns their groups would not be contiguous.
  if (const nlohmann::json* order = weights->find("actorder");
      order != nullptr && *order != false && *order != "weight" && *order != "static") {
    weights->unsupported("actorder", "null, 'weight' or 'static'");
  }
  const std::vector<std::string> targets = group.strings("targets");
  if (targets.empty()) group.bad("targets", "a list of module names");
  for (const std::string& target : targets) {
    targets_.push_back({NamePattern(target, group.place() + ": targets"), scheme});
  }
}

std::optional<QuantizedModule> QuantizationConfig::find(std::string_view module_name) const {
  for (const NamePattern& pattern : ignore_) {
    if (pattern.text() == "Linear" || pattern.matches(module_name)) return std::nullopt;
  }
  for (bool expressions : {false, true}) {
    for (const Target& target : targets_) {
      if (target.pattern.is_expression() == expressions && target.pattern.matches(module_name)) {
        return target.scheme;
      }
    }
  }
  for (const Target& target : targets_) {
    if (target.pattern.text() == "Linear") return target.scheme;
  }
  return std::nullopt;
}

}  // namespace vitrine::checkpoint
