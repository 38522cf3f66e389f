// SPDX-License-Identifier: Apache-2.0
// Tensors as a safetensors file has them, made in a test.
#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/checkpoint/folders.h"
#include "vitrine/checkpoint.h"

namespace vitrine::testing {

struct StoredTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> bytes;
};
using StoredTensors = std::map<std::string, StoredTensor>;

template <typename T>
StoredTensor stored(DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {dtype, std::move(shape), {bytes.begin(), bytes.end()}};
}

inline void write_stored(const std::string& path, const StoredTensors& tensors) {
  SafetensorsWriter writer(path);
  for (const auto& [name, tensor] : tensors) writer.declare(name, tensor.dtype, tensor.shape);
  writer.begin({{"format", "pt"}});
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor.bytes);
  writer.finish();
}

}  // namespace vitrine::testing
