// SPDX-License-Identifier: Apache-2.0
#include "text.h"

namespace vitrine::checkpoint {

std::string range_text(int64_t low, int64_t high) {
  return std::to_string(low) + " to " + std::to_string(high);
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string result = "[";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i == 16) return result + ", …]";
    result += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return result + "]";
}

void throw_bad_file(const std::string& message) { throw Error(ErrorKind::kBadFile, message); }

void throw_unsupported(const std::string& message) {
  throw Error(ErrorKind::kUnsupported, message);
}

}  // namespace vitrine::checkpoint
