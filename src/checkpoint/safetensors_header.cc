// SPDX-License-Identifier: Apache-2.0
#include "safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

#include "text.h"

namespace vitrine::checkpoint {
namespace {

using Json = nlohmann::json;

std::optional<DType> dtype_from_name(std::string_view name) {
  constexpr std::array kAll = {DType::kF32,  DType::kF16, DType::kBF16,  DType::kI8,
                               DType::kU8,   DType::kI16, DType::kI32,   DType::kI64,
                               DType::kBool, DType::kF64, DType::kF8E4M3};
  for (DType dtype : kAll) {
    if (dtype_name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

/// Reads the header event by event: a hostile one costs no more memory than its tensors.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(std::string file) : file_(std::move(file)) {}

  struct Entry {
    TensorInfo info;
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  std::vector<Entry> entries;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { return unexpected(std::to_string(value)); }
  bool number_float(number_float_t, const string_t&) override {
    return unexpected("a fractional or oversized number");
  }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_list_) return unexpected(std::to_string(value));
    if (field_ == "shape") {
      if (value > static_cast<uint64_t>(INT64_MAX)) return unexpected(std::to_string(value));
      if (entries.back().info.shape.size() == 64) return unexpected("more than 64 extents");
      entries.back().info.shape.push_back(static_cast<int64_t>(value));
    } else {
      if (offset_count_ == 2) return unexpected("a third offset");
      (offset_count_ == 0 ? entries.back().begin : entries.back().end) = value;
      ++offset_count_;
    }
    return true;
  }

  bool string(string_t& value) override {
    if (depth_ == 2 && in_metadata_) return true;
    if (depth_ != 2 || in_list_ || field_ != "dtype") return unexpected(quote_text(value));
    const std::optional<DType> dtype = dtype_from_name(value);
    if (!dtype) {
      constexpr std::array<std::string_view, 12> kOther = {
          "U16",         "U32", "U64", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ",
          "F8_E5M2FNUZ", "C64", "F4",  "F6_E2M3", "F6_E3M2", "F16_E5M10"};
      const std::string message = tensor_field() + " is " + quote_text(value) +
                                  "; expected one of F32, F16, BF16, F64, I8, U8, I16, I32, I64, "
                                  "BOOL, F8_E4M3";
      if (std::ranges::find(kOther, value) != kOther.end()) throw_unsupported(message);
      throw_bad_file(message);
    }
    entries.back().info.dtype = *dtype;
    return true;
  }

  bool start_object(std::size_t) override {
    if (depth_ == 2 || in_list_) return unexpected("an object");
    ++depth_;
    fields_seen_ = 0;
    return true;
  }

  bool key(string_t& value) override {
    if (depth_ == 1) {
      if (!names_.insert(value).second) {
        throw_bad_file(file_ + ": header names the tensor " + quote_text(value) +
                       " twice; expected it once");
      }
      in_metadata_ = value == "__metadata__";
      field_.clear();
      if (!in_metadata_) {
        entries.emplace_back();
        entries.back().info.name = value;
        offset_count_ = 0;
      }
      return true;
    }
    if (in_metadata_) return true;
    const unsigned bit = value == "dtype"          ? 1u
                         : value == "shape"        ? 2u
                         : value == "data_offsets" ? 4u
                                                   : 0u;
    field_ = value;
    if (bit == 0 || (fields_seen_ & bit) != 0) {
      throw_bad_file(tensor_field() + (bit == 0 ? " is unknown" : " stands twice") +
                     "; expected dtype, shape and data_offsets, each once");
    }
    fields_seen_ |= bit;
    return true;
  }

  bool end_object() override {
    --depth_;
    if (depth_ == 1 && !in_metadata_ && (fields_seen_ != 7 || offset_count_ != 2)) {
      throw_bad_file(file_ + ": header entry " + quote_text(entries.back().info.name) +
                     " is incomplete; expected dtype, shape and data_offsets [begin, end]");
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (depth_ != 2 || in_metadata_ || in_list_ ||
        (field_ != "shape" && field_ != "data_offsets")) {
      return unexpected("a list");
    }
    in_list_ = true;
    return true;
  }

  bool end_array() override {
    in_list_ = false;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    throw_bad_file(file_ + ": header is invalid JSON at its byte " + std::to_string(position) +
                   "; expected a JSON object");
  }

 private:
  std::string tensor_field() const {
    return file_ + ": header field " + quote_text(field_) + " of " +
           quote_text(entries.empty() ? "" : entries.back().info.name);
  }

  bool unexpected(const std::string& found) const {
    if (depth_ == 0) throw_bad_file(file_ + ": header is " + found + "; expected a JSON object");
    if (in_metadata_) {
      throw_bad_file(file_ + ": header field '__metadata__' holds " + found +
                     "; expected an object of strings");
    }
    throw_bad_file(tensor_field() + " holds " + found +
                   "; expected {dtype: string, shape: [sizes], data_offsets: [begin, end]}");
  }

  std::string file_;
  std::unordered_set<std::string> names_;
  std::string field_;
  int depth_ = 0;
  int offset_count_ = 0;
  unsigned fields_seen_ = 0;
  bool in_metadata_ = false;
  bool in_list_ = false;
};

}  // namespace

std::optional<uint64_t> tensor_bytes(DType dtype, const std::vector<int64_t>& shape) {
  // int64 bounds the product, so that callers may count elements in int64.
  int64_t bytes = static_cast<int64_t>(dtype_size(dtype));
  for (int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(bytes, extent, &bytes)) return std::nullopt;
  }
  return static_cast<uint64_t>(bytes);
}

std::vector<TensorInfo> read_safetensors_header(const InputFile& file, int file_index) {
  if (file.size() < 8) {
    throw_bad_file(file.path() + ": has " + std::to_string(file.size()) +
                   " bytes; expected a safetensors file (8 bytes of header length first)");
  }
  std::array<std::byte, 8> length_bytes;
  file.read(0, length_bytes);
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | std::to_integer<uint64_t>(length_bytes[i]);
  if (length > kMaxHeaderBytes) {
    throw_bad_file(file.path() + ": header length is " + std::to_string(length) +
                   "; expected at most " + std::to_string(kMaxHeaderBytes));
  }
  if (length > file.size() - 8) {
    throw_bad_file(file.path() + ": header length is " + std::to_string(length) + ", but only " +
                   std::to_string(file.size() - 8) +
                   " bytes follow; expected a whole file (is it truncated?)");
  }
  std::string text(static_cast<size_t>(length), '\0');
  file.read(8, std::as_writable_bytes(std::span(text.data(), text.size())));
  if (text.empty() || text[0] != '{') {
    throw_bad_file(file.path() + ": header does not start with '{'; expected a JSON object");
  }
  HeaderReader reader(file.path());
  Json::sax_parse(text, &reader);

  auto& entries = reader.entries;
  std::ranges::sort(entries, [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.info.name) < std::tie(b.begin, b.end, b.info.name);
  });
  const uint64_t data_begin = 8 + length;
  const uint64_t data_bytes = file.size() - data_begin;
  uint64_t expected_begin = 0;
  std::vector<TensorInfo> tensors;
  tensors.reserve(entries.size());
  for (auto& entry : entries) {
    const std::string offsets = file.path() + ": data_offsets of " + quote_text(entry.info.name) +
                                " are [" + std::to_string(entry.begin) + ", " +
                                std::to_string(entry.end) + "]";
    if (entry.end < entry.begin || entry.end > data_bytes) {
      throw_bad_file(offsets + ", out of range; expected an interval within the " +
                     std::to_string(data_bytes) + " bytes of data (is the file truncated?)");
    }
    if (entry.begin != expected_begin) {
      throw_bad_file(offsets +
                     (entry.begin < expected_begin ? ", overlapping" : ", leaving a gap") +
                     "; expected to begin at " + std::to_string(expected_begin));
    }
    const std::optional<uint64_t> bytes = tensor_bytes(entry.info.dtype, entry.info.shape);
    if (!bytes) {
      throw_bad_file(file.path() + ": shape " + shape_text(entry.info.shape) + " of " +
                     quote_text(entry.info.name) + " overflows; expected a product below 2^63");
    }
    if (*bytes != entry.end - entry.begin) {
      throw_bad_file(offsets + ", " + std::to_string(entry.end - entry.begin) +
                     " bytes; expected " + std::to_string(*bytes) + " for dtype " +
                     std::string(dtype_name(entry.info.dtype)) + " and shape " +
                     shape_text(entry.info.shape));
    }
    expected_begin = entry.end;
    entry.info.file_offset = data_begin + entry.begin;
    entry.info.num_bytes = entry.info.stored_bytes = *bytes;
    entry.info.file_index = file_index;
    tensors.push_back(std::move(entry.info));
  }
  if (expected_begin != data_bytes) {
    throw_bad_file(file.path() + ": tensors cover " + std::to_string(expected_begin) +
                   " bytes, but " + std::to_string(data_bytes) +
                   " bytes of data follow the header; expected the same");
  }
  return tensors;
}

}  // namespace vitrine::checkpoint
