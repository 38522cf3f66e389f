// SPDX-License-Identifier: Apache-2.0
// Folders with hand-made checkpoint files, shared by the tests and the fuzz program.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "checkpoint/model_config.h"
#include "vitrine/checkpoint.h"

namespace vitrine::testing {

/// A new folder that vanishes with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    static std::atomic<int> counter{0};
    path_ = std::filesystem::temp_directory_path() /
            ("vitrine-test-" + std::to_string(::getpid()) + "-" + std::to_string(counter++));
    std::filesystem::create_directories(path_);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  std::string path() const { return path_.string(); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// 8 bytes of length, the header, `data_bytes` bytes that count up.
inline std::string safetensors_bytes(const std::string& header, size_t data_bytes) {
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
  bytes += header;
  for (size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i & 0xff);
  return bytes;
}

/// A config.json that parse_model_config accepts.
inline std::string small_config() {
  return R"({"model_type": "qwen3_moe", "vocab_size": 64, "hidden_size": 64,
             "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 32, "intermediate_size": 96, "moe_intermediate_size": 32,
             "num_experts": 4, "num_experts_per_tok": 2, "max_position_embeddings": 128,
             "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
             "tie_word_embeddings": false, "hidden_act": "silu", "eos_token_id": [3, 1]})";
}

/// The error that `action` must end with; an empty one with kInternal where it doesn't.
template <typename Action>
Error error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorKind::kInternal, "");
}

/// True for one line that holds all of `parts`.
inline bool is_one_line_with(const Error& error, std::initializer_list<std::string_view> parts) {
  const std::string_view text = error.what();
  if (text.empty() || text.find('\n') != text.npos) return false;
  for (std::string_view part : parts) {
    if (text.find(part) == text.npos) return false;
  }
  return true;
}

}  // namespace vitrine::testing
