// SPDX-License-Identifier: Apache-2.0
// Folders that others' packages quantized: tests/checkpoint/make_*_folders.py made them.
#pragma once

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/checkpoint/folders.h"
#include "tests/support/test_data.h"

namespace vitrine::testing {

inline std::string quantized_folder(const std::string& name) {
  return testing_support::test_data("quantized") + "/" + name;
}

/// What the writer's package and transformers gave.
inline nlohmann::json expected_of(const std::string& name) {
  return nlohmann::json::parse(read_bytes(quantized_folder(name) + "/expected.json"));
}

inline std::vector<std::string> quantized_folders() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(quantized_folder(""))) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace vitrine::testing
