// SPDX-License-Identifier: Apache-2.0
#include "text_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>

#include "common.h"

namespace cli {

namespace {

/// Reads to the end; the descriptor stays open.
std::string read_to_end(int descriptor, const std::string& name, size_t max_bytes) {
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = ::read(descriptor, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw vitrine::Error(vitrine::ErrorKind::kIo, fmt::format("{}: {}; expected a text there",
                                                                name, std::strerror(errno)));
    }
    if (count == 0) return text;
    text.append(buffer, static_cast<size_t>(count));
    if (text.size() > max_bytes) {
      refuse(fmt::format("{} is larger than {}; expected at most that", name,
                         format_bytes(max_bytes)));
    }
  }
}

std::string read_path(const std::string& path, size_t max_bytes) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    throw vitrine::Error(vitrine::ErrorKind::kIo,
                         fmt::format("{}: {}", path, std::strerror(errno)));
  }
  try {
    std::string text = read_to_end(descriptor, path, max_bytes);
    ::close(descriptor);
    return text;
  } catch (...) {
    ::close(descriptor);
    throw;
  }
}

}  // namespace

bool is_standard_input(const std::string& path) {
  return path == "-" || path == "/dev/stdin" || path == "/dev/fd/0" || path == "/proc/self/fd/0";
}

std::string read_text_file(const std::string& path, size_t max_bytes) {
  static std::map<std::string, std::string> read_once;  // texts that are gone from where they were
  const bool is_input = is_standard_input(path);
  const std::string key = is_input ? "-" : path;
  if (const auto found = read_once.find(key); found != read_once.end()) return found->second;
  if (is_input) {
    return read_once[key] = read_to_end(STDIN_FILENO, "standard input", max_bytes);
  }
  std::error_code error;
  const auto type = std::filesystem::status(path, error).type();
  if (type == std::filesystem::file_type::regular) return read_path(path, max_bytes);
  if (type != std::filesystem::file_type::fifo && type != std::filesystem::file_type::character) {
    refuse(fmt::format("'{}' is not a file; expected one to read", path));
  }
  return read_once[key] = read_path(path, max_bytes);
}

void refuse_shared_input(const std::vector<std::pair<std::string, std::string>>& inputs) {
  const std::string* first = nullptr;
  for (const auto& [name, path] : inputs) {
    if (!is_standard_input(path)) continue;
    if (first != nullptr) {
      refuse(fmt::format("{} and {} both read standard input; expected a file for one of them",
                         *first, name));
    }
    first = &name;
  }
}

}  // namespace cli
