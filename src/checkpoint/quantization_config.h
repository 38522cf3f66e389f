// SPDX-License-Identifier: Apache-2.0
// Private to the room: what a folder says of its quantized modules, `quantization_config` of
// config.json. Each `quant_method` is one file, which registers how it is read; the layouts that it
// names are others (module_layout.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fields.h"
#include "module_layout.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// A folder's way to quantize: what applies to which module. Immutable, thread-safe.
class QuantizationConfig {
 public:
  virtual ~QuantizationConfig() = default;
  /// Returns what applies to a linear module of that name; nothing where it is left out. Throws
  /// kUnsupported for an expression that takes too many steps.
  virtual std::optional<QuantizedModule> find(std::string_view module_name) const = 0;
  /// Returns the paths of a folder's weight files, where the method's writer has names of its own
  /// for them; none where there are none, and in Hugging Face's. Throws kBadFile where one is
  /// missing.
  virtual std::vector<std::string> find_weight_files(const std::string&) const { return {}; }
  /// Returns what the config asks for beside weights and what is done about it, one line each.
  const std::vector<std::string>& notes() const { return notes_; }

 protected:
  void add_note(const std::string& note) { notes_.push_back(note); }
  /// Notes that a field gives keys and values scales of their own.
  void add_cache_note(const std::string& field);

 private:
  std::vector<std::string> notes_;
};

/// Reads the object. Throws kBadFile for a broken one, kUnsupported for a valid one that Vitrine
/// can't read.
using ReadQuantization = std::unique_ptr<const QuantizationConfig> (*)(const Fields& fields);

/// The file of each method holds one static object of this type for each name.
class QuantMethodFile {
 public:
  QuantMethodFile(const char* quant_method, ReadQuantization read);
};

/// Reads the object as a Config, which is made of it: the ReadQuantization of most methods.
template <typename Config>
std::unique_ptr<const QuantizationConfig> read_as(const Fields& fields) {
  return std::make_unique<const Config>(fields);
}

/// Finds the method by `quant_method` and reads the object. Throws as ReadQuantization does, and
/// kUnsupported for an unknown method.
std::unique_ptr<const QuantizationConfig> read_quantization(const Fields& fields);

/// Throws kUnsupported: "<place>: field '<field>' is <found>, which <why>; expected <command>".
[[noreturn]] void refuse_format(const Fields& fields, std::string_view field,
                                const std::string& why, const std::string& command);

/// Says whether a field is there, and no empty list or object.
bool has_content(const Fields& fields, std::string_view name);
/// A string and the field that has it.
struct NamedString {
  std::string_view field;
  std::string value;
};
/// Returns the string of the first field that is there; `otherwise`, with the last of them, where
/// none is. Throws kBadFile where one is no string.
NamedString first_string(const Fields& fields, std::initializer_list<std::string_view> names,
                         std::string_view otherwise);
/// Refuses another string in that field.
void expect_string(const Fields& fields, std::string_view name, std::string_view expected);
/// Refuses a field that asks for what Vitrine can't read; absent, null or empty is fine.
void refuse_unless_empty(const Fields& fields, std::string_view name);
/// Returns a module of 8-bit floats; `block_rows` rows share a scale, as QuantizedModule has it.
QuantizedModule float8_module(std::string_view format, int block_rows);
/// Reads the rows and columns that share a scale.
void read_float_block(const Fields& fields, std::string_view name, QuantizedModule& scheme);
/// Reads a group size, -1 for whole rows, as QuantizedModule has it.
int read_group_size(const Fields& fields, std::initializer_list<std::string_view> names);

}  // namespace vitrine::checkpoint
