// SPDX-License-Identifier: Apache-2.0
#include "gguf_writer.h"

#include <bit>
#include <cstring>

#include "text.h"

namespace vitrine::checkpoint {
namespace {

constexpr uint64_t kAlignment = 32;  // what the format has where a file names none

template <typename Value>
void append(std::string& to, Value value) {
  static_assert(std::endian::native == std::endian::little);
  to.append(reinterpret_cast<const char*>(&value), sizeof value);
}

void append_string(std::string& to, std::string_view text) {
  append(to, static_cast<uint64_t>(text.size()));
  to += text;
}

uint64_t aligned(uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

void GgufWriter::begin_value(std::string_view key, GgufType type) {
  append_string(values_, key);
  append(values_, static_cast<uint32_t>(type));
  ++num_values_;
}

void GgufWriter::set_string(std::string_view key, std::string_view value) {
  begin_value(key, GgufType::kString);
  append_string(values_, value);
}

void GgufWriter::set_u32(std::string_view key, uint64_t value) {
  begin_value(key, GgufType::kU32);
  append(values_, static_cast<uint32_t>(value));
}

void GgufWriter::set_f32(std::string_view key, double value) {
  begin_value(key, GgufType::kF32);
  append(values_, static_cast<float>(value));
}

void GgufWriter::set_bool(std::string_view key, bool value) {
  begin_value(key, GgufType::kBool);
  append(values_, static_cast<uint8_t>(value ? 1 : 0));
}

void GgufWriter::set_strings(std::string_view key, const std::vector<std::string>& values) {
  begin_value(key, GgufType::kArray);
  append(values_, static_cast<uint32_t>(GgufType::kString));
  append(values_, static_cast<uint64_t>(values.size()));
  for (const std::string& value : values) append_string(values_, value);
}

void GgufWriter::set_i32s(std::string_view key, const std::vector<int32_t>& values) {
  begin_value(key, GgufType::kArray);
  append(values_, static_cast<uint32_t>(GgufType::kI32));
  append(values_, static_cast<uint64_t>(values.size()));
  for (const int32_t value : values) append(values_, value);
}

void GgufWriter::declare(const std::string& name, uint32_t ggml_type,
                         const std::vector<int64_t>& shape, uint64_t num_bytes) {
  if (!entries_.emplace(name, Entry{ggml_type, shape, num_bytes}).second) {
    throw Error(ErrorKind::kInvalidArgument,
                path_ + ": tensor name " + quote_text(name) + " is taken; expected each name once");
  }
  order_.push_back(name);
}

void GgufWriter::begin() {
  std::string header = "GGUF";
  append(header, uint32_t{3});
  append(header, static_cast<uint64_t>(order_.size()));
  append(header, num_values_);
  header += values_;
  uint64_t offset = 0;
  for (const std::string& name : order_) {
    Entry& entry = entries_.at(name);
    entry.offset = offset;
    offset = aligned(offset + entry.num_bytes);
    append_string(header, name);
    append(header, static_cast<uint32_t>(entry.shape.size()));
    for (size_t i = entry.shape.size(); i-- > 0;) {
      append(header, static_cast<uint64_t>(entry.shape[i]));
    }
    append(header, entry.ggml_type);
    append(header, entry.offset);
  }
  data_begin_ = aligned(header.size());
  header.resize(data_begin_, '\0');
  file_ = std::make_unique<ReplacementFile>(path_);
  file_->write(0, std::as_bytes(std::span(header)));
}

void GgufWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  Entry& entry = entries_.at(name);
  if (bytes.size() > entry.num_bytes - entry.written) {
    throw Error(ErrorKind::kInternal, path_ + ": tensor " + quote_text(name) + " gets " +
                                          std::to_string(entry.written + bytes.size()) +
                                          " bytes; expected " + std::to_string(entry.num_bytes));
  }
  file_->write(data_begin_ + entry.offset + entry.written, bytes);
  entry.written += bytes.size();
}

void GgufWriter::finish() {
  uint64_t end = data_begin_;
  for (const auto& [name, entry] : entries_) {
    if (entry.written != entry.num_bytes) {
      throw Error(ErrorKind::kInternal, path_ + ": tensor " + quote_text(name) + " got " +
                                            std::to_string(entry.written) + " bytes; expected " +
                                            std::to_string(entry.num_bytes));
    }
    end = std::max(end, data_begin_ + entry.offset + entry.num_bytes);
  }
  // Readers take the last tensor up to the alignment, too.
  const std::vector<std::byte> rest(static_cast<size_t>(aligned(end) - end));
  file_->write(end, rest);
  file_->commit();
  file_.reset();
}

}  // namespace vitrine::checkpoint
