// SPDX-License-Identifier: Apache-2.0
// Private to the room: `quantization_config` of config.json, as compressed-tensors writes it, and
// as the layout "fp8" of published 8-bit checkpoints has it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fields.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// A module name to compare with: equal, or a regular expression ("re:…") that must match from the
/// name's start, as Python's `re.match`, or all of it (`whole`), as `re.fullmatch`. Immutable,
/// thread-safe.
class NamePattern {
 public:
  /// Throws kBadFile naming `place` for an expression that can't be compiled.
  NamePattern(const std::string& text, const std::string& place, bool whole = false);
  /// Throws kUnsupported where the expression takes too many steps.
  bool matches(std::string_view name) const;
  bool is_expression() const { return code_ != nullptr; }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::string place_;
  std::shared_ptr<const void> code_;  ///< pcre2_code
};

/// The groups of a `pack-quantized` or `float-quantized` folder, or the one way of an "fp8" folder.
class QuantizationConfig {
 public:
  /// Throws kBadFile for a broken one, kUnsupported for a valid one that Vitrine can't read.
  explicit QuantizationConfig(const Fields& fields);

  /// Returns what applies to a linear module of that name. As compressed-tensors decides: ignored
  /// modules first, then exact names, then expressions, then the class "Linear".
  std::optional<QuantizedModule> find(std::string_view module_name) const;
  /// Returns how the name of a tensor of 8-bit floats' scales may end; the first is the usual one.
  const std::vector<std::string>& float_scale_suffixes() const { return float_scale_suffixes_; }

 private:
  struct Target {
    NamePattern pattern;
    QuantizedModule scheme;
  };
  void read_fp8(const Fields& fields);
  void read_group(const Fields& group, const std::string& format);

  std::vector<NamePattern> ignore_;
  std::vector<Target> targets_;
  std::vector<std::string> float_scale_suffixes_ = {".weight_scale"};
};

}  // namespace vitrine::checkpoint
