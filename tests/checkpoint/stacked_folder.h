// SPDX-License-Identifier: Apache-2.0
// Folders of quantized experts one by one, with the experts of a layer stacked in 3-D tensors.
#pragma once

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "checkpoint/file_io.h"
#include "checkpoint/safetensors_header.h"
#include "tests/checkpoint/stored_tensors.h"
#include "vitrine/checkpoint.h"

namespace vitrine::testing {

/// How the tensors of a stack are named, and where gate and up meet in the scales.
struct StackStyle {
  bool is_nested = false;      ///< "gate_up_proj.weight_scale"; else "gate_up_proj_scale"
  bool joins_columns = false;  ///< [experts, rows, 2 x groups], as repack_moe; else along the rows
};

inline StoredTensors read_stored(const std::string& path) {
  const vitrine::checkpoint::InputFile file(path);
  StoredTensors tensors;
  for (const TensorInfo& info : vitrine::checkpoint::read_safetensors_header(file, 0)) {
    StoredTensor& tensor = tensors[info.name];
    tensor = {info.dtype, info.shape, std::vector<std::byte>(info.num_bytes)};
    file.read(info.file_offset, tensor.bytes);
  }
  return tensors;
}

/// Returns gate and up as one: rows of both, or each row of the gate with that of up behind it; one
/// number each as two.
inline StoredTensor join(const StoredTensor& gate, const StoredTensor& up, bool joins_columns) {
  StoredTensor both = {gate.dtype, gate.shape, {}};
  const size_t pieces = joins_columns ? static_cast<size_t>(gate.shape.at(0)) : 1;
  const size_t bytes = gate.bytes.size() / pieces;
  for (size_t piece = 0; piece < pieces; ++piece) {
    for (const StoredTensor* half : {&gate, &up}) {
      const auto from = half->bytes.begin() + static_cast<std::ptrdiff_t>(piece * bytes);
      both.bytes.insert(both.bytes.end(), from, from + static_cast<std::ptrdiff_t>(bytes));
    }
  }
  if (both.shape.empty()) both.shape = {1};
  (joins_columns ? both.shape.back() : both.shape.front()) *= 2;
  return both;
}

/// Stacks the experts that stand one by one as "….experts.0.gate_proj.weight…".
inline StoredTensors stack_experts(const StoredTensors& from, StackStyle style) {
  const auto expert_name = [](const std::string& prefix, int64_t expert, const std::string& end) {
    return prefix + std::to_string(expert) + "." + end;
  };
  StoredTensors to;
  for (const auto& [name, tensor] : from) {
    constexpr std::string_view kExperts = ".experts.";
    const size_t at = name.find(kExperts);
    if (at == name.npos) {
      to[name] = tensor;
      continue;
    }
    const std::string prefix = name.substr(0, at + kExperts.size());
    const size_t point = name.find('.', prefix.size());
    const std::string end = name.substr(point + 1);  // "gate_proj.weight_scale"
    if (name.substr(prefix.size(), point - prefix.size()) != "0" || end.starts_with("up_"))
      continue;
    const std::string projection = end.substr(0, end.find('.'));
    const std::string part = end.substr(projection.size() + 1);
    const bool is_gate = projection == "gate_proj";
    StoredTensor stack = {tensor.dtype, {}, {}};
    int64_t experts = 0;
    for (auto found = from.find(name); found != from.end();
         found = from.find(expert_name(prefix, ++experts, end))) {
      StoredTensor each = found->second;
      if (is_gate) {
        const StoredTensor& up = from.at(expert_name(prefix, experts, "up_proj." + part));
        const bool joins_columns = style.joins_columns && part.starts_with("weight_") &&
                                   part != "weight_packed" && each.shape.size() == 2;
        each = join(each, up, joins_columns);
      }
      if (stack.shape.empty()) {
        stack.shape = each.shape;
        stack.shape.insert(stack.shape.begin(), 0);
      }
      ++stack.shape[0];
      stack.bytes.insert(stack.bytes.end(), each.bytes.begin(), each.bytes.end());
    }
    const std::string stem = prefix + (is_gate ? "gate_up_proj" : "down_proj");
    const std::string flat =
        part == "weight" ? "" : "_" + (part.starts_with("weight_") ? part.substr(7) : part);
    to[stem + (style.is_nested ? "." + part : flat)] = std::move(stack);
  }
  return to;
}

/// Writes the folder with its experts stacked.
inline void write_stacked(const std::string& from, const std::string& to, StackStyle style) {
  for (const auto& entry : std::filesystem::directory_iterator(from)) {
    if (!entry.is_regular_file() || entry.path().filename() == "model.safetensors") continue;
    std::filesystem::copy(entry.path(), std::filesystem::path(to) / entry.path().filename());
  }
  write_stored(to + "/model.safetensors",
               stack_experts(read_stored(from + "/model.safetensors"), style));
}

}  // namespace vitrine::testing
