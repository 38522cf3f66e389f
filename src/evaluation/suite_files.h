// SPDX-License-Identifier: Apache-2.0
// Private to the library: where a suite's files come from.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vitrine::evaluation {

/// The files of one suite: beside its TOML file, or within the library.
class SuiteFiles {
 public:
  /// `path` is a file, or the name of a built-in suite. Throws kInvalidArgument where it is
  /// neither.
  explicit SuiteFiles(const std::string& path);

  /// The TOML file's name in messages.
  const std::string& name() const { return name_; }
  /// The TOML file's text. Throws kIo and kBadFile (too large).
  std::string suite() const;
  /// A file's text, by its name relative to the TOML file. Throws kIo and kBadFile; `where` names
  /// the field that names it.
  std::string items(const std::string& file, const std::string& where) const;
  /// An item file's name in messages.
  std::string items_name(const std::string& file) const;

 private:
  std::string name_;
  std::string folder_;  // with a slash at its end, or empty
  bool is_builtin_ = false;
};

/// A file's text; nothing where there is no such file. Throws kIo, and kBadFile for more than
/// `most` bytes and for what is no regular file.
std::optional<std::string> read_file_if_there(const std::string& path, size_t most);

/// Names of the suites within the library.
std::vector<std::string> builtin_suites();

}  // namespace vitrine::evaluation
