// SPDX-License-Identifier: Apache-2.0
#include "text_file.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common.h"

namespace cli {

std::string read_text_file(const std::string& path, size_t max_bytes) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    refuse(fmt::format("'{}' is not a file; expected one to read", path));
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  std::string text;
  char buffer[1 << 16];
  while (file.read(buffer, sizeof(buffer)) || file.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(file.gcount()));
    if (text.size() > max_bytes) {
      refuse(fmt::format("{} is larger than {}; expected less", path, format_bytes(max_bytes)));
    }
  }
  if (file.bad() || !file.eof()) {
    throw vitrine::Error(vitrine::ErrorKind::kIo,
                         fmt::format("{}: {}", path, std::strerror(errno)));
  }
  return text;
}

}  // namespace cli
