// SPDX-License-Identifier: Apache-2.0
// A folder of its own for each test of the JSON log, and what a log begins with.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "vitrine/audit.h"

namespace vitrine::audit_test {

class JsonLogTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "vitrine-audit-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string at(const std::string& name) const { return (folder_ / name).string(); }
  static std::string read(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  static void write(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
  }
  /// Names in the folder, sorted.
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      found.push_back(entry.path().filename().string());
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  std::filesystem::path folder_;
};

inline LogHeader some_header() {
  LogHeader header;
  header.model_path = "models/a \"quoted\"\\ path";
  header.architecture = "qwen3_moe";
  header.device = "cpu";
  header.kernels = "fused";
  header.isa = "avx512";
  header.threads = 2;
  header.num_layers = 4;
  header.vocab_size = 8192;
  header.seed = 18446744073709551615u;
  header.engine = {{"rope_frequencies", "bf16"}};
  header.sampler = {{"temperature", "0.8"}, {"top_k", "40"}, {"stage", "inf"}, {"note", "1x"}};
  header.hashes = {{"config.json", std::string(64, 'f')},
                   {"model.safetensors", std::string(64, '0')}};
  return header;
}

inline std::string piece(int32_t token);

/// Its bytes are no UTF-8 by themselves where the piece is one of "😀é".
inline TokenPiece told_piece(int32_t token) {
  if (token % 5 == 2) return {piece(token), "\xF0\x9F" + std::to_string(token)};
  return {piece(token), token % 5 == 0 ? " t" + std::to_string(token) : piece(token)};
}

inline std::string piece(int32_t token) {
  switch (token % 5) {
    case 0: return "Ġt" + std::to_string(token);
    case 1: return "\"\\\n\t\r\x01\x7f" + std::to_string(token);
    case 2: return "😀é" + std::to_string(token);
    default: return "p" + std::to_string(token);
  }
}

}  // namespace vitrine::audit_test
