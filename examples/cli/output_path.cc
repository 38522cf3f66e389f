// SPDX-License-Identifier: Apache-2.0
#include "output_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
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

/// A file of a model's or adapter's folder that is read with it.
bool is_read_with(const std::string& output, const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return false;
  const fs::path file = fs::weakly_canonical(fs::absolute(output, error), error);
  if (error || !fs::is_regular_file(file, error)) return false;
  if (!fs::equivalent(file.parent_path(), folder, error)) return false;
  constexpr std::array kNames{"config.json",
                              "generation_config.json",
                              "tokenizer.json",
                              "tokenizer_config.json",
                              "special_tokens_map.json",
                              "chat_template.jinja",
                              "chat_template.json",
                              "model.safetensors.index.json",
                              "adapter_config.json",
                              "vitrine_manifest.json",
                              "tekken.json",
                              "tiktoken.model"};
  return file.extension() == ".safetensors" || file.extension() == ".gguf" ||
         std::ranges::find(kNames, file.filename().string()) != kNames.end();
}

}  // namespace

void refuse_same_file(const NamedPath& output, const std::vector<NamedPath>& others) {
  if (output.second.empty()) return;
  for (const auto& [name, path] : others) {
    if (path.empty()) continue;
    if (is_read_with(output.second, path)) {
      refuse(fmt::format("{} {}: is a file of {} {}, which it would replace; expected another",
                         output.first, output.second, name, path));
    }
    if (!is_same_file(output.second, path)) continue;
    refuse(fmt::format("{} {}: is the same file as {} {}, which it would replace; expected another",
                       output.first, output.second, name, path));
  }
}

}  // namespace cli
