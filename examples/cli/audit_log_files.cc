// SPDX-License-Identifier: Apache-2.0
#include "audit_log_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "common.h"

namespace cli {

std::vector<std::string> audit_log_files(const std::string& option,
                                         const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  std::vector<std::string> all;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      all.push_back(path);
      continue;
    }
    std::vector<std::string> files;
    for (fs::recursive_directory_iterator entry(path, error), end; !error && entry != end;
         entry.increment(error)) {
      if (entry->path().extension() == ".vtr") files.push_back(entry->path().string());
    }
    if (error) refuse(fmt::format("{} {}: {}", option, path, error.message()));
    if (files.empty()) refuse(fmt::format("{} {}: has no .vtr files; expected some", option, path));
    std::ranges::sort(files);
    all.insert(all.end(), files.begin(), files.end());
  }
  return all;
}

}  // namespace cli
