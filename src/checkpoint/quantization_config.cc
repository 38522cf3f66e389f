// SPDX-License-Identifier: Apache-2.0
#include "quantization_config.h"

#include "core/registry.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

core::Registry<std::string, ReadQuantization>& registered_quant_methods() {
  static core::Registry<std::string, ReadQuantization> methods("quantization method");
  return methods;
}

constexpr const char* kExpectedMethods =
    "'compressed-tensors', 'gptq', 'awq', 'auto-round', 'modelopt', 'exl2', 'fp8' or 'mxfp4'";

}  // namespace

QuantMethodFile::QuantMethodFile(const char* quant_method, ReadQuantization read) {
  registered_quant_methods().add(quant_method, read);
}

std::unique_ptr<const QuantizationConfig> read_quantization(const Fields& fields) {
  const std::string name = fields.string("quant_method").value_or("");
  const ReadQuantization* read = registered_quant_methods().find(name);
  if (read == nullptr) fields.unsupported("quant_method", kExpectedMethods);
  return (*read)(fields);
}

void QuantizationConfig::add_cache_note(const std::string& field) {
  add_note("keys and values: the file has scales for them (" + field +
           "); they are kept as the KV type says, which has its own");
}

void refuse_format(const Fields& fields, std::string_view field, const std::string& why,
                   const std::string& command) {
  const nlohmann::json* value = fields.find(field);
  throw_unsupported(fields.place() + ": field " + quote_text(field) + " is " +
                    (value == nullptr ? "missing" : found_text(*value)) + ", which " + why +
                    "; expected " + command);
}

bool has_content(const Fields& fields, std::string_view name) {
  const nlohmann::json* value = fields.find(name);
  return value != nullptr && !value->empty();
}

NamedString first_string(const Fields& fields, std::initializer_list<std::string_view> names,
                         std::string_view otherwise) {
  std::optional<NamedString> first;
  for (const std::string_view name : names) {
    const std::optional<std::string> value = fields.string(name);
    if (value && !first) first = {name, *value};
  }
  return first.value_or(NamedString{*(names.end() - 1), std::string(otherwise)});
}

void expect_string(const Fields& fields, std::string_view name, std::string_view expected) {
  if (fields.string(name) != expected) fields.unsupported(name, quote_text(expected));
}

void refuse_unless_empty(const Fields& fields, std::string_view name) {
  if (has_content(fields, name)) fields.unsupported(name, "null");
}

QuantizedModule float8_module(std::string_view format, int block_rows) {
  return {.number_format = NumberFormat::kE4M3,
          .bits = 8,
          .block_rows = block_rows,
          .format = format,
          .layout = &float8_layout()};
}

void read_float_block(const Fields& fields, std::string_view name, QuantizedModule& scheme) {
  const std::vector<int64_t> block = fields.integers(name, 1, 1 << 20, 2);
  if (block.size() != 2) fields.bad(name, "a list of two sizes");
  scheme.block_rows = static_cast<int>(block[0]);
  scheme.group_size = static_cast<int>(block[1]);
}

int read_group_size(const Fields& fields, std::initializer_list<std::string_view> names) {
  constexpr int64_t kMost = 1 << 20;
  const std::optional<int64_t> found = fields.integer(names, -1, kMost);
  if (!found) fields.bad(*names.begin(), "a group size");
  if (*found == 0) fields.bad(*names.begin(), "columns of a group, or -1 for whole rows");
  return *found == -1 ? 0 : static_cast<int>(*found);
}

}  // namespace vitrine::checkpoint
