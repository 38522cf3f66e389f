// SPDX-License-Identifier: Apache-2.0
#include "gguf_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <set>

#include "gguf_types.h"
#include "text.h"

namespace vitrine::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF values are copied as they stand");

constexpr uint64_t kMaxHeaderBytes = uint64_t{1} << 30;
constexpr uint64_t kMaxNameBytes = 65535;
constexpr int kMaxArrayDepth = 8;
constexpr uint64_t kDefaultAlignment = 32;
constexpr int64_t kMaxAlignment = 1 << 20;
constexpr uint32_t kMaxExtents = 4;
// The shortest entries: an empty key, its type and a byte; a name of one letter and one extent.
constexpr uint64_t kLeastValueBytes = 8 + 4 + 1;
constexpr uint64_t kLeastTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;

/// Bytes of a value of fixed size; 0 for strings, arrays and numbers that name no type.
uint64_t scalar_bytes(uint32_t type) {
  constexpr std::array<uint8_t, 13> kBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < kBytes.size() ? kBytes[type] : 0;
}

/// Reads a file from its start, piece by piece; `what` says in messages what is being read.
class Cursor {
 public:
  explicit Cursor(const InputFile& file) : file_(file) {}

  const std::string& path() const { return file_.path(); }
  uint64_t position() const { return position_; }
  uint64_t remaining() const { return file_.size() - position_; }

  /// Throws where the file or the limit of a header ends before `size` more bytes.
  void require(uint64_t size, const std::string& what) const {
    if (size > remaining()) {
      throw_bad_file(path() + ": " + what + " takes " + std::to_string(size) + " bytes, but " +
                     std::to_string(remaining()) +
                     " are left in the file; expected a whole file (is it truncated?)");
    }
    if (position_ + size > kMaxHeaderBytes) {
      throw_bad_file(path() + ": " + what + " reaches beyond byte " +
                     std::to_string(kMaxHeaderBytes) + "; expected a smaller header");
    }
  }

  void read(void* out, uint64_t size, const std::string& what) {
    require(size, what);
    auto* bytes = static_cast<std::byte*>(out);
    while (size > 0) {
      if (position_ < window_begin_ || position_ >= window_begin_ + window_size_) refill();
      const uint64_t offset = position_ - window_begin_;
      const uint64_t count = std::min(size, window_size_ - offset);
      std::memcpy(bytes, window_.data() + offset, count);
      bytes += count;
      position_ += count;
      size -= count;
    }
  }

  template <typename T>
  T scalar(const std::string& what) {
    T value;
    read(&value, sizeof(value), what);
    return value;
  }

  /// The length of a string, checked before anything is allocated.
  uint64_t length(const std::string& what, uint64_t most) {
    const auto size = scalar<uint64_t>("the length of " + what);
    if (size > remaining() || size > most) {
      throw_bad_file(path() + ": the length of " + what + " is " + std::to_string(size) +
                     "; expected at most " + std::to_string(std::min(remaining(), most)) +
                     (size > remaining() ? ", what is left of the file (is it truncated?)" : ""));
    }
    return size;
  }

  std::string string(const std::string& what, uint64_t most = kMaxHeaderBytes) {
    std::string text(length(what, most), '\0');
    read(text.data(), text.size(), what);
    return text;
  }

 private:
  void refill() {
    window_begin_ = position_;
    window_size_ = std::min<uint64_t>(window_.size(), remaining());
    file_.read(position_, std::span(window_.data(), window_size_));
  }

  const InputFile& file_;
  uint64_t position_ = 0;
  std::array<std::byte, 65536> window_;
  uint64_t window_begin_ = 0;
  uint64_t window_size_ = 0;
};

[[noreturn]] void throw_unknown_type(const Cursor& cursor, const std::string& what, uint32_t type) {
  throw_bad_file(cursor.path() + ": " + what + " has the value type " + std::to_string(type) +
                 "; expected 0 to 12");
}

void check_boolean(const Cursor& cursor, const std::string& what, uint8_t value) {
  if (value > 1) {
    throw_bad_file(cursor.path() + ": " + what + " is a boolean of value " + std::to_string(value) +
                   "; expected 0 or 1");
  }
}

GgufArray read_array(Cursor& cursor, const std::string& what, int depth);

/// Walks over arrays within arrays, which no key that we read has.
void skip_arrays(Cursor& cursor, const std::string& what, uint64_t count, int depth) {
  if (depth >= kMaxArrayDepth) {
    throw_bad_file(cursor.path() + ": " + what + " is nested deeper than " +
                   std::to_string(kMaxArrayDepth) + " arrays; expected fewer");
  }
  for (uint64_t i = 0; i < count; ++i) read_array(cursor, what, depth + 1);
}

GgufArray read_array(Cursor& cursor, const std::string& what, int depth) {
  const auto type = cursor.scalar<uint32_t>("the type of " + what);
  GgufArray array;
  array.count = cursor.scalar<uint64_t>("the count of " + what);
  const uint64_t element_bytes = scalar_bytes(type);
  const bool is_string = type == static_cast<uint32_t>(GgufType::kString);
  const bool is_array = type == static_cast<uint32_t>(GgufType::kArray);
  if (element_bytes == 0 && !is_string && !is_array) throw_unknown_type(cursor, what, type);
  array.element_type = static_cast<GgufType>(type);
  const uint64_t least_bytes = is_string ? 8 : is_array ? 12 : element_bytes;
  if (array.count > cursor.remaining() / least_bytes) {
    throw_bad_file(cursor.path() + ": " + what + " says that it holds " +
                   std::to_string(array.count) + " values of type " +
                   gguf_type_name(array.element_type) + ", but " +
                   std::to_string(cursor.remaining()) +
                   " bytes are left in the file; expected a count that fits");
  }
  if (is_array) {
    skip_arrays(cursor, what, array.count, depth);
  } else if (is_string) {
    array.ends.reserve(array.count);
    for (uint64_t i = 0; i < array.count; ++i) {
      const uint64_t size = cursor.length("a string of " + what, kMaxHeaderBytes);
      const size_t begin = array.bytes.size();
      array.bytes.resize(begin + size);
      cursor.read(array.bytes.data() + begin, size, what);
      array.ends.push_back(array.bytes.size());
    }
  } else {
    const uint64_t size = array.count * element_bytes;
    cursor.require(size, what);
    array.bytes.resize(size);
    cursor.read(array.bytes.data(), size, what);
    if (array.element_type == GgufType::kBool) {
      for (char value : array.bytes) check_boolean(cursor, what, static_cast<uint8_t>(value));
    }
  }
  return array;
}

GgufValue read_value(Cursor& cursor, const std::string& what) {
  const auto type = cursor.scalar<uint32_t>("the type of " + what);
  if (type > static_cast<uint32_t>(GgufType::kF64)) throw_unknown_type(cursor, what, type);
  GgufValue value;
  value.type = static_cast<GgufType>(type);
  switch (value.type) {
    case GgufType::kU8: value.value = uint64_t{cursor.scalar<uint8_t>(what)}; break;
    case GgufType::kI8: value.value = int64_t{cursor.scalar<int8_t>(what)}; break;
    case GgufType::kU16: value.value = uint64_t{cursor.scalar<uint16_t>(what)}; break;
    case GgufType::kI16: value.value = int64_t{cursor.scalar<int16_t>(what)}; break;
    case GgufType::kU32: value.value = uint64_t{cursor.scalar<uint32_t>(what)}; break;
    case GgufType::kI32: value.value = int64_t{cursor.scalar<int32_t>(what)}; break;
    case GgufType::kU64: value.value = cursor.scalar<uint64_t>(what); break;
    case GgufType::kI64: value.value = cursor.scalar<int64_t>(what); break;
    case GgufType::kF32: value.value = static_cast<double>(cursor.scalar<float>(what)); break;
    case GgufType::kF64: value.value = cursor.scalar<double>(what); break;
    case GgufType::kBool: {
      const auto flag = cursor.scalar<uint8_t>(what);
      check_boolean(cursor, what, flag);
      value.value = flag == 1;
      break;
    }
    case GgufType::kString: value.value = cursor.string(what); break;
    case GgufType::kArray: value.value = read_array(cursor, what, 0); break;
  }
  return value;
}

TensorInfo read_tensor_info(Cursor& cursor, uint64_t index, uint64_t alignment) {
  TensorInfo info;
  info.name = cursor.string("the name of tensor " + std::to_string(index), kMaxNameBytes);
  const std::string what = "tensor " + quote_text(info.name);
  const std::string place = cursor.path() + ": " + what;
  if (info.name.empty()) {
    throw_bad_file(cursor.path() + ": tensor " + std::to_string(index) +
                   " has an empty name; expected one");
  }
  const auto extents = cursor.scalar<uint32_t>("the number of extents of " + what);
  if (extents < 1 || extents > kMaxExtents) {
    throw_bad_file(place + " has " + std::to_string(extents) + " extents; expected 1 to " +
                   std::to_string(kMaxExtents));
  }
  for (uint32_t i = 0; i < extents; ++i) {
    const auto extent = cursor.scalar<uint64_t>("an extent of " + what);
    if (extent < 1 || extent > static_cast<uint64_t>(INT64_MAX)) {
      throw_bad_file(place + " has an extent of " + std::to_string(extent) +
                     "; expected 1 to 2^63 - 1");
    }
    info.shape.push_back(static_cast<int64_t>(extent));
  }
  std::ranges::reverse(info.shape);  // the file lists the fastest extent first
  set_tensor_type(cursor.path(), info, cursor.scalar<uint32_t>("the type of " + what));
  info.file_offset = cursor.scalar<uint64_t>("the offset of " + what);
  if (info.file_offset % alignment != 0) {
    throw_bad_file(place + " has the offset " + std::to_string(info.file_offset) +
                   "; expected a multiple of the alignment " + std::to_string(alignment));
  }
  return info;
}

uint64_t read_alignment(const GgufMetadata& metadata) {
  constexpr std::string_view kKey = "general.alignment";
  const auto value = metadata.integer(kKey, 1, kMaxAlignment);
  if (!value) return kDefaultAlignment;
  if (!std::has_single_bit(static_cast<uint64_t>(*value))) metadata.bad(kKey, "a power of two");
  return static_cast<uint64_t>(*value);
}

/// Makes offsets absolute; every tensor must lie in the data, and begin where the one before ends:
/// a gap would say that a type or a shape is not the one that was written.
void place_tensors(const Cursor& cursor, std::vector<TensorInfo>& tensors, uint64_t alignment,
                   uint64_t file_size) {
  const uint64_t begin =
      std::min(file_size, (cursor.position() + alignment - 1) / alignment * alignment);
  const uint64_t data_bytes = file_size - begin;
  std::vector<const TensorInfo*> by_offset;
  for (const TensorInfo& info : tensors) {
    if (info.file_offset > data_bytes || info.stored_bytes > data_bytes - info.file_offset) {
      throw_bad_file(cursor.path() + ": tensor " + quote_text(info.name) + " lies at offset " +
                     std::to_string(info.file_offset) + " and takes " +
                     std::to_string(info.stored_bytes) + " bytes; expected it within the " +
                     std::to_string(data_bytes) + " bytes of data (is the file truncated?)");
    }
    by_offset.push_back(&info);
  }
  std::ranges::sort(by_offset, {}, &TensorInfo::file_offset);
  uint64_t end = 0;
  for (size_t i = 0; i < by_offset.size(); ++i) {
    const TensorInfo& info = *by_offset[i];
    const uint64_t expected = (end + alignment - 1) / alignment * alignment;
    if (info.file_offset < end) {
      throw_bad_file(cursor.path() + ": tensor " + quote_text(info.name) + " lies at offset " +
                     std::to_string(info.file_offset) + ", within " +
                     quote_text(by_offset[i - 1]->name) + "; expected tensors that do not overlap");
    }
    if (info.file_offset > expected) {
      throw_bad_file(cursor.path() + ": tensor " + quote_text(info.name) + " lies at offset " +
                     std::to_string(info.file_offset) + "; expected " + std::to_string(expected) +
                     (i == 0 ? ", the beginning of the data"
                             : ", where " + quote_text(by_offset[i - 1]->name) +
                                   " ends (is its type or shape another?)"));
    }
    end = info.file_offset + info.stored_bytes;
  }
  for (TensorInfo& info : tensors) info.file_offset += begin;
}

void check_count(const Cursor& cursor, const char* what, uint64_t count, uint64_t least_bytes) {
  if (count <= cursor.remaining() / least_bytes) return;
  throw_bad_file(cursor.path() + ": the number of " + what + " is " + std::to_string(count) +
                 ", but " + std::to_string(cursor.remaining()) +
                 " bytes follow; expected a number that fits (is the file truncated?)");
}

}  // namespace

bool has_gguf_magic(const InputFile& file) {
  char magic[4] = {};
  if (file.size() < sizeof(magic)) return false;
  file.read(0, std::as_writable_bytes(std::span(magic)));
  return std::string_view(magic, sizeof(magic)) == "GGUF";
}

GgufHeader read_gguf_header(const InputFile& file) {
  Cursor cursor(file);
  char magic[4];
  cursor.read(magic, sizeof(magic), "the magic number");
  if (magic[0] == '{') {
    throw_bad_file(
        file.path() +
        ": looks like JSON; expected a .gguf file or a Hugging Face folder (what several "
        "models together are described in goes to 'vitrine federate')");
  }
  if (std::string_view(magic, sizeof(magic)) != "GGUF") {
    throw_bad_file(file.path() + ": starts with " +
                   quote_text(std::string_view(magic, sizeof(magic))) +
                   "; expected 'GGUF' (a model is a .gguf file or a Hugging Face folder)");
  }
  const auto version = cursor.scalar<uint32_t>("the version");
  if (version != 2 && version != 3) {
    const bool is_swapped = version != 0 && version % 65536 == 0;
    throw_unsupported(file.path() + ": the version is " + std::to_string(version) +
                      (is_swapped ? " (big-endian)" : "") + "; expected 2 or 3, little-endian");
  }
  const auto num_tensors = cursor.scalar<uint64_t>("the number of tensors");
  const auto num_values = cursor.scalar<uint64_t>("the number of keys");
  check_count(cursor, "keys", num_values, kLeastValueBytes);
  check_count(cursor, "tensors", num_tensors, kLeastTensorBytes);

  GgufHeader header{GgufMetadata(file.path()), {}};
  for (uint64_t i = 0; i < num_values; ++i) {
    const std::string key = cursor.string("key " + std::to_string(i), kMaxNameBytes);
    if (!header.metadata.add(key, read_value(cursor, "key " + quote_text(key)))) {
      throw_bad_file(file.path() + ": the key " + quote_text(key) + " stands twice; expected once");
    }
  }
  const uint64_t alignment = read_alignment(header.metadata);
  std::set<std::string> names;
  for (uint64_t i = 0; i < num_tensors; ++i) {
    header.tensors.push_back(read_tensor_info(cursor, i, alignment));
    if (!names.insert(header.tensors.back().name).second) {
      throw_bad_file(file.path() + ": holds the tensor " + quote_text(header.tensors.back().name) +
                     " twice; expected it once");
    }
  }
  place_tensors(cursor, header.tensors, alignment, file.size());
  return header;
}

}  // namespace vitrine::checkpoint
