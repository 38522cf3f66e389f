// SPDX-License-Identifier: Apache-2.0
#include "evaluation/suite_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "core/json_text.h"
#include "evaluation/builtin_suites.h"
#include "evaluation/fields.h"
#include "vitrine/core.h"

namespace vitrine::evaluation {

namespace {

constexpr size_t kMostSuiteBytes = size_t{1} << 20;
constexpr size_t kMostItemBytes = size_t{64} << 20;

const BuiltinFile* find_builtin(std::string_view name) {
  const auto found = std::ranges::find(kBuiltinFiles, name, &BuiltinFile::name);
  return found == std::end(kBuiltinFiles) ? nullptr : &*found;
}

[[noreturn]] void throw_system(const std::string& path) {
  throw Error(ErrorKind::kIo, path + ": " + std::generic_category().message(errno));
}

/// Closes a file at the end of a scope.
struct OpenFile {
  int descriptor;
  ~OpenFile() { close(descriptor); }
};

}  // namespace

std::optional<std::string> read_text_file(const std::string& path, size_t most) {
  // O_NONBLOCK: a pipe that nobody writes into is told of and not waited for.
  const OpenFile file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.descriptor < 0 && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  struct stat facts = {};
  if (file.descriptor < 0 || fstat(file.descriptor, &facts) != 0) throw_system(path);
  if (!S_ISREG(facts.st_mode)) {
    throw Error(ErrorKind::kBadFile, path + ": found no regular file; expected one");
  }
  std::string text;
  std::array<char, size_t{1} << 16> piece;
  while (true) {
    const ssize_t count = read(file.descriptor, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_system(path);
    if (count == 0) return text;
    text.append(piece.data(), static_cast<size_t>(count));
    if (text.size() > most) {
      throw Error(ErrorKind::kBadFile,
                  path + ": more than " + std::to_string(most) + " bytes; expected fewer");
    }
  }
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
  std::optional<std::string> text = read_text_file(name_, kMostSuiteBytes);
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
  } else if (std::optional<std::string> text = read_text_file(folder_ + file, kMostItemBytes)) {
    return *std::move(text);
  }
  throw_field(where, "'items' is " + quote_text(file) + ", where nothing is; expected a file");
}

}  // namespace vitrine::evaluation
