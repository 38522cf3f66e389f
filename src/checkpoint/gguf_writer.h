// SPDX-License-Identifier: Apache-2.0
// A GGUF file (version 3), written whole or not at all.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "file_io.h"
#include "gguf_header.h"

namespace vitrine::checkpoint {

/// Writes one: set all keys, declare all tensors, begin, then write their bytes in any order.
class GgufWriter {
 public:
  explicit GgufWriter(std::string path) : path_(std::move(path)) {}

  void set_string(std::string_view key, std::string_view value);
  void set_u32(std::string_view key, uint64_t value);
  void set_f32(std::string_view key, double value);
  void set_bool(std::string_view key, bool value);
  void set_strings(std::string_view key, const std::vector<std::string>& values);
  void set_i32s(std::string_view key, const std::vector<int32_t>& values);

  /// Adds a tensor; `shape` slowest first. Throws kInvalidArgument for a name given twice.
  void declare(const std::string& name, uint32_t ggml_type, const std::vector<int64_t>& shape,
               uint64_t num_bytes);
  /// Writes the header. Throws kIo.
  void begin();
  /// Writes the next bytes of a tensor. Throws kInternal for more than were declared, kIo.
  void write(const std::string& name, std::span<const std::byte> bytes);
  /// Makes the file. Throws kInternal where a tensor is not complete, kIo.
  void finish();

 private:
  struct Entry {
    uint32_t ggml_type = 0;
    std::vector<int64_t> shape;
    uint64_t num_bytes = 0, offset = 0, written = 0;
  };
  void begin_value(std::string_view key, GgufType type);

  std::string path_;
  std::string values_;  // keys and values as the file has them
  uint64_t num_values_ = 0;
  std::vector<std::string> order_;
  std::map<std::string, Entry> entries_;
  uint64_t data_begin_ = 0;
  std::unique_ptr<ReplacementFile> file_;
};

}  // namespace vitrine::checkpoint
