// SPDX-License-Identifier: Apache-2.0
#include "evaluation/suite_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "core/json_text.h"
#include "evaluation/builtin_suites.h"
#include "evaluation/fields.h"
#include "vitrine/checkpoint.h"

namespace vitrine::evaluation {

namespace {

constexpr size_t kMostSuiteBytes = size_t{1} << 20;
constexpr size_t kMostItemBytes = size_t{64} << 20;

const BuiltinFile* find_builtin(std::string_view name) {
  const auto found = std::ranges::find(kBuiltinFiles, name, &BuiltinFile::name);
  return found == std::end(kBuiltinFiles) ? nullptr : &*found;
}

}  // namespace

std::optional<std::string> read_file_if_there(const std::string& path, size_t most) {
  if (access(path.c_str(), F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) {
    return std::nullopt;
  }
  return read_text_file(path, most);
}

std::vector<std::string> builtin_suites() {
  constexpr std::string_view kEnding = ".toml";
  std::vector<std::string> names;
  for (const BuiltinFile& file : kBuiltinFiles) {
    if (file.name.ends_with(kEnding)) {
      names.emplace_back(file.name.substr(0, file.name.size() - kEnding.size()));
    }
  }
  return names;
}

SuiteFiles::SuiteFiles(const std::string& path) : name_(path) {
  struct stat facts = {};
  const bool is_there = stat(path.c_str(), &facts) == 0 && !S_ISDIR(facts.st_mode);
  is_builtin_ = !is_there && find_builtin(path + ".toml") != nullptr;
  if (!is_there && !is_builtin_) {
    throw Error(ErrorKind::kInvalidArgument,
                quote_text(path) + " is neither a file nor a built-in suite; expected a suite's " +
                    "TOML file or " + one_of_text(builtin_suites()));
  }
  const size_t slash = path.rfind('/');
  if (!is_builtin_ && slash != std::string::npos) folder_ = path.substr(0, slash + 1);
}

std::string SuiteFiles::suite() const {
  if (is_builtin_) return std::string(find_builtin(name_ + ".toml")->text);
  std::optional<std::string> text = read_file_if_there(name_, kMostSuiteBytes);
  if (!text) throw Error(ErrorKind::kIo, name_ + ": the file went away while it was opened");
  return *std::move(text);
}

std::string SuiteFiles::items_name(const std::string& file) const {
  return is_builtin_ ? name_ + ":" + file : folder_ + file;
}

std::string SuiteFiles::items(const std::string& file, const std::string& where) const {
  const bool is_outside = file.empty() || file.front() == '/' || file == ".." ||
                          file.starts_with("../") || file.find("/../") != std::string::npos ||
                          file.ends_with("/..") || file.find('\0') != std::string::npos;
  if (is_outside) {
    throw_field(where, "'items' is " + quote_text(file) +
                           "; expected a file's name within the suite's folder");
  }
  if (is_builtin_) {
    const BuiltinFile* found = find_builtin(file);
    if (found != nullptr) return std::string(found->text);
  } else if (std::optional<std::string> text = read_file_if_there(folder_ + file, kMostItemBytes)) {
    return *std::move(text);
  }
  throw_field(where, "'items' is " + quote_text(file) + ", where nothing is; expected a file");
}

}  // namespace vitrine::evaluation
