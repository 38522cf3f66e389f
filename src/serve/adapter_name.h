// SPDX-License-Identifier: Apache-2.0
// What requests call an adapter.
#pragma once

#include <filesystem>
#include <string>

namespace vitrine::serve {

/// Returns the name of the adapter's folder.
inline std::string adapter_name(const std::string& folder) {
  const std::filesystem::path path(folder);
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

}  // namespace vitrine::serve
