// SPDX-License-Identifier: Apache-2.0
// Whether two paths, by whatever way, name one file.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>

#include "vitrine/core.h"

namespace vitrine {

/// Throws kInvalidArgument where `target` is what is read, also by way of a link: the new file
/// would take its place.
inline void refuse_to_replace(const std::string& read, const std::string& target) {
  std::error_code error;
  if (read.empty() || !std::filesystem::equivalent(read, target, error) || error) return;
  throw Error(ErrorKind::kInvalidArgument,
              target + ": would replace " + read + ", which it is made from; choose another path");
}

}  // namespace vitrine
