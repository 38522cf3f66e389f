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
#include "vitrine/checkpoint.h"
#include "vitrine/quant.h"

namespace vitrine::testing {

inline std::string quantized_folder(const std::string& name) {
  return testing_support::test_data(name.starts_with("exl2") ? "exl2" : "quantized") + "/" + name;
}
/// Returns one of make_activation_folders.py: "token", "file", "experts".
inline std::string activation_folder(const std::string& name) {
  return testing_support::test_data("w8a8") + "/" + name;
}

/// Returns what the writer's package and transformers gave.
inline nlohmann::json expected_of(const std::string& name) {
  return nlohmann::json::parse(read_bytes(quantized_folder(name) + "/expected.json"));
}

/// Finds a module's tensors, with the rows that the model has.
inline std::optional<QuantizedTensors> find_module(const Checkpoint& checkpoint,
                                                   const std::string& module,
                                                   const nlohmann::json& expected) {
  auto tensors = checkpoint.find_quantized_tensors(module);
  if (tensors && expected.contains("rows")) {
    tensors->rows = expected["rows"][module].get<int64_t>();
  }
  return tensors;
}

/// Reads a module as the writer's package gives its weights: float32, rounded where rows are.
inline std::vector<float> read_module(const Checkpoint& checkpoint, const std::string& module,
                                      const nlohmann::json& expected) {
  const auto tensors = find_module(checkpoint, module, expected);
  if (!tensors) return checkpoint.read_f32(module + ".weight");
  std::vector<float> values = checkpoint.read_quantized_floats(*tensors, 0, tensors->rows);
  if (tensors->floats != DType::kBF16) return values;
  for (float& value : values) value = bf16_to_float(float_to_bf16(value));
  return values;
}

inline std::vector<std::string> quantized_folders() {
  std::vector<std::string> names;
  for (const char* archive : {"quantized", "exl2"}) {
    const std::string folder = testing_support::test_data(archive);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace vitrine::testing
