// SPDX-License-Identifier: Apache-2.0
#include "lora_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include <charconv>
#include <cmath>
#include <filesystem>

#include "audit_run.h"
#include "common.h"

namespace cli {

namespace {

constexpr const char* kLoraOption = "lora";
constexpr const char* kLoraFiles[] = {"adapter_config.json", "adapter_model.safetensors"};

std::pair<std::string, float> lora_part(const std::string& given) {
  std::error_code error;
  const auto require = [&](const std::string& path) {
    if (std::filesystem::exists(path, error)) return;
    refuse(fmt::format(
        "--lora {}: '{}' is not there; expected an adapter's folder in PEFT's layout, or "
        "its adapter_model.safetensors, and behind a colon its scale",
        given, path));
  };
  const size_t colon = given.rfind(':');
  if (colon == given.npos || std::filesystem::exists(given, error)) {
    require(given);
    return {given, 1.0F};
  }
  const std::string path = given.substr(0, colon), scale = given.substr(colon + 1);
  float value = 0;
  const auto [end, status] = std::from_chars(scale.data(), scale.data() + scale.size(), value);
  if (status != std::errc() || end != scale.data() + scale.size() || !std::isfinite(value)) {
    refuse(fmt::format("--lora {}: the scale is '{}'; expected a number, as 0.5", given, scale));
  }
  require(path);
  return {path, value};
}

}  // namespace

void add_lora(CLI::App& command, std::vector<std::string>& given) {
  command
      .add_option("--lora", given,
                  "FILE[:SCALE]: add a low-rank adapter (PEFT's folder, or its "
                  "adapter_model.safetensors), times the scale; several are summed")
      ->allow_extra_args(false)
      ->check(not_empty());
}

LoraParts lora_parts(const std::vector<std::string>& given) {
  LoraParts parts;
  for (const std::string& one : given) parts.push_back(lora_part(one));
  return parts;
}

FileHashes lora_hashes(const LoraParts& parts, HashCache cache) {
  FileHashes hashes;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::filesystem::path folder = parts[i].first;
    if (folder.extension() == ".safetensors") folder = folder.parent_path();
    for (const char* name : kLoraFiles) {
      const bool is_named = name == kLoraFiles[1] && folder != parts[i].first;
      const std::string file = is_named ? parts[i].first : (folder / name).string();
      hashes.emplace_back(fmt::format("lora {} {}", i + 1, name), file_hash(file, cache));
    }
  }
  return hashes;
}

void add_lora_to(const std::vector<std::string>& given, vitrine::LogHeader& header) {
  if (given.empty()) return;
  const LoraParts parts = lora_parts(given);
  nlohmann::json json = nlohmann::json::array();
  for (const auto& [path, scale] : parts) json.push_back({path, fmt::format("{}", scale)});
  header.engine.emplace_back(kLoraOption,
                             json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  for (auto& hash : lora_hashes(parts)) header.hashes.push_back(std::move(hash));
}

LoraParts logged_lora(const vitrine::LogHeader& header) {
  LoraParts parts;
  for (const auto& [name, value] : header.engine) {
    if (name != kLoraOption) continue;
    const nlohmann::json json = nlohmann::json::parse(value, nullptr, false);
    const auto fail = [&value = value] {
      refuse(fmt::format("the log's engine option 'lora' is '{}'; expected [[path, scale], …]",
                         plain(value)));
    };
    if (!json.is_array()) fail();
    for (const nlohmann::json& part : json) {
      if (!part.is_array() || part.size() != 2 || !part[0].is_string() || !part[1].is_string())
        fail();
      const auto scale = part[1].get<std::string>();
      float number = 0;
      const auto [end, status] = std::from_chars(scale.data(), scale.data() + scale.size(), number);
      if (status != std::errc() || end != scale.data() + scale.size()) fail();
      parts.emplace_back(part[0].get<std::string>(), number);
    }
  }
  return parts;
}

}  // namespace cli
