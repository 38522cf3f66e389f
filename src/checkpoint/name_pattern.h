// SPDX-License-Identifier: Apache-2.0
// Private to the library: names of modules as config files give them, exactly or by an expression.
#pragma once

#include <memory>
#include <string>
#include <string_view>

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

}  // namespace vitrine::checkpoint
