// SPDX-License-Identifier: Apache-2.0
// GGUF files made by hand, lies included.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vitrine::testing {

/// Little-endian bytes of a number.
template <typename T>
std::string le(T value) {
  std::string bytes(sizeof(T), '\0');
  __builtin_memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline std::string gguf_string(std::string_view text) {
  return le<uint64_t>(text.size()) + std::string(text);
}

/// A metadata entry: key, type, the value's bytes as given.
inline std::string gguf_entry(std::string_view key, uint32_t type, const std::string& value) {
  return gguf_string(key) + le(type) + value;
}
inline std::string gguf_u32(std::string_view key, uint32_t value) {
  return gguf_entry(key, 4, le(value));
}
inline std::string gguf_f32(std::string_view key, float value) {
  return gguf_entry(key, 6, le(value));
}
inline std::string gguf_text(std::string_view key, std::string_view value) {
  return gguf_entry(key, 8, gguf_string(value));
}
inline std::string gguf_bool(std::string_view key, bool value) {
  return gguf_entry(key, 7, le<uint8_t>(value ? 1 : 0));
}
inline std::string gguf_strings(std::string_view key, const std::vector<std::string>& values) {
  std::string bytes = le<uint32_t>(8) + le<uint64_t>(values.size());
  for (const std::string& value : values) bytes += gguf_string(value);
  return gguf_entry(key, 9, bytes);
}
template <typename T>
std::string gguf_array(std::string_view key, uint32_t type, const std::vector<T>& values) {
  std::string bytes = le(type) + le<uint64_t>(values.size());
  for (T value : values) bytes += le(value);
  return gguf_entry(key, 9, bytes);
}

/// A tensor's entry; extents fastest first, as the format has them.
inline std::string gguf_tensor(std::string_view name, const std::vector<uint64_t>& extents,
                               uint32_t type, uint64_t offset) {
  std::string bytes = gguf_string(name) + le(static_cast<uint32_t>(extents.size()));
  for (uint64_t extent : extents) bytes += le(extent);
  return bytes + le(type) + le(offset);
}

/// A whole file. Counts are those of the lists unless they are set.
struct GgufFile {
  uint32_t version = 3;
  std::vector<std::string> entries;
  std::vector<std::string> tensors;
  size_t alignment = 32;
  size_t data_bytes = 0;
  uint64_t num_entries = UINT64_MAX, num_tensors = UINT64_MAX;

  std::string bytes() const {
    std::string bytes = "GGUF" + le(version);
    bytes += le(num_tensors == UINT64_MAX ? uint64_t{tensors.size()} : num_tensors);
    bytes += le(num_entries == UINT64_MAX ? uint64_t{entries.size()} : num_entries);
    for (const std::string& entry : entries) bytes += entry;
    for (const std::string& tensor : tensors) bytes += tensor;
    bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0');
    for (size_t i = 0; i < data_bytes; ++i) bytes += static_cast<char>(i % 61);
    return bytes;
  }
};

/// A llama of one layer, 64 wide, 2 heads of 32 over 1, that opens; its embedding is F32 [4, 64].
inline GgufFile small_gguf() {
  GgufFile file;
  file.entries = {gguf_text("general.architecture", "llama"),
                  gguf_u32("llama.context_length", 128),
                  gguf_u32("llama.embedding_length", 64),
                  gguf_u32("llama.block_count", 1),
                  gguf_u32("llama.feed_forward_length", 96),
                  gguf_u32("llama.attention.head_count", 2),
                  gguf_u32("llama.attention.head_count_kv", 1),
                  gguf_f32("llama.attention.layer_norm_rms_epsilon", 1e-5F)};
  file.tensors = {gguf_tensor("token_embd.weight", {64, 4}, 0, 0)};
  file.data_bytes = 1024;
  return file;
}

}  // namespace vitrine::testing
