#include "output_path.h"

#include <fmt/format.h>

#include <filesystem>

#include "common.h"

namespace cli {

namespace {

namespace fs = std::filesystem;

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code error;
  if (fs::equivalent(one, other, error)) return true;
  // Where one is new: its folder's links are resolved, and its name is compared.
  const fs::path left = fs::weakly_canonical(fs::absolute(one, error), error);
  if (error) return false;
  const fs::path right = fs::weakly_canonical(fs::absolute(other, error), error);
  return !error && left == right;
}

}  // namespace

void refuse_same_file(const NamedPath& output, const std::vector<NamedPath>& others) {
  if (output.second.empty()) return;
  for (const auto& [name, path] : others) {
    if (path.empty() || !is_same_file(output.second, path)) continue;
    refuse(fmt::format("{} {}: is the same file as {} {}, which it would replace; expected another",
                       output.first, output.second, name, path));
  }
}

}  // namespace cli
