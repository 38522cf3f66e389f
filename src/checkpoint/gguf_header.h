// SPDX-License-Identifier: Apache-2.0
// Private to the room: the header of a GGUF file (versions 2 and 3, little-endian): metadata and
// the places of the tensors. No length, count, offset or type in it is believed before it was
// checked.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "file_io.h"
#include "vitrine/checkpoint.h"

namespace vitrine::checkpoint {

/// Value types of the format, by their number.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

/// Returns the type's name: "a string", "a float32", …
std::string gguf_type_name(GgufType type);

/// An array of scalars or strings as its bytes in the file. An array of arrays has its count alone.
struct GgufArray {
  GgufType element_type = GgufType::kU8;
  uint64_t count = 0;
  std::string bytes;           ///< the elements, little-endian; strings one after the other
  std::vector<uint64_t> ends;  ///< strings: where each ends in `bytes`

  std::string_view string(uint64_t index) const;
  /// Returns an element of type F32 or F64.
  double number(uint64_t index) const;
  /// Returns an element of an integer type; a kU64 above INT64_MAX wraps to a negative number.
  int64_t integer(uint64_t index) const;
};

struct GgufValue {
  GgufType type = GgufType::kU8;
  /// A value: a signed or unsigned integer, a float, a boolean, a string or an array.
  std::variant<int64_t, uint64_t, double, bool, std::string, GgufArray> value;
};

/// Typed, range-checked access to the metadata; every message names the file and the key.
class GgufMetadata {
 public:
  explicit GgufMetadata(std::string file) : file_(std::move(file)) {}

  const std::string& file() const { return file_; }
  const GgufValue* find(std::string_view key) const;
  bool contains(std::string_view key) const { return find(key) != nullptr; }
  /// Adds an entry. Returns false where the key is there already.
  bool add(const std::string& key, GgufValue value);

  /// Returns an integer of any width within [low, high]; nothing where the key is absent. Throws
  /// kBadFile, as the ones below do.
  std::optional<int64_t> integer(std::string_view key, int64_t low, int64_t high) const;
  /// Returns an id of at most `last`; nothing where the key is absent or has all bits set, as some
  /// writers say that there is none.
  std::optional<int64_t> token_id(std::string_view key, int64_t last) const;
  int64_t required_integer(std::string_view key, int64_t low, int64_t high) const;
  /// Returns an integer; the file has it once, or an array of as many equal ones as layers.
  std::optional<int64_t> uniform_integer(std::string_view key, int64_t low, int64_t high) const;
  /// Returns an array of integers within [low, high]; a single number is one. Throws kBadFile,
  /// also where it is absent.
  std::vector<int64_t> integers(std::string_view key, int64_t low, int64_t high) const;
  /// Returns a finite float within [low, high]; a float32 as the shortest decimal that gives it.
  std::optional<double> number(std::string_view key, double low, double high) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<std::string> string(std::string_view key) const;
  std::string required_string(std::string_view key) const;
  /// Returns an array of that element type; null where the key is absent.
  const GgufArray* array(std::string_view key, GgufType element_type) const;

  /// Throws kBadFile: "<file>: key '<key>' is <found>; expected <expected>".
  [[noreturn]] void bad(std::string_view key, const std::string& expected) const;
  /// Throws kUnsupported with the same text.
  [[noreturn]] void unsupported(std::string_view key, const std::string& expected) const;

 private:
  std::string message(std::string_view key, const std::string& expected) const;

  std::string file_;
  std::map<std::string, GgufValue, std::less<>> values_;
};

struct GgufHeader {
  GgufMetadata metadata;
  /// Tensors as the file names them, in its order; extents slowest first. `file_index` is 0.
  std::vector<TensorInfo> tensors;
};

/// Returns true where the file starts with the format's four letters.
bool has_gguf_magic(const InputFile& file);

/// Reads and checks a header. Throws kBadFile, kUnsupported (another version, a tensor type that
/// this build can't read), kIo.
GgufHeader read_gguf_header(const InputFile& file);

}  // namespace vitrine::checkpoint
